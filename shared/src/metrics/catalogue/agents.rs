//! Agents, which ask the policy over HTTP.

use crate::metrics::metric::section;

section! {
    "Agents", "What the agents of a run with `agent` have asked for at their endpoint.";

    /// Requests whose values of sampling were replaced by those of the run.
    ///
    /// 0. Otherwise agents ask for a temperature or the like of their own, and get that of the run.
    metric ENDPOINT_OVERRIDDEN = "endpoint/overridden" { unit: Count, source: "Tandem", when: "`agent`" }

    /// Conversations beside the first of each sample. They are trained on too, and share the reward of their sample.
    ///
    /// As many as the agents hold. More than these: an agent changes what the policy has said, so that its messages
    /// continue no conversation.
    metric ENDPOINT_BRANCHES = "endpoint/branches" { unit: Count, source: "Tandem", when: "`agent`" }
}
