//! Hub and workers of a run over zenoh: the transport behind [`shared::channel::fleet`].
