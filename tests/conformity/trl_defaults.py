"""trl_1.16_defaults.json, and the defaults in `tandem_rl`, against the dataclass that TRL's GRPOConfig is, with what it
inherits from transformers."""

import dataclasses
import sys

from support import ROOT, answer, golden
from trl import GRPOConfig

sys.path.insert(0, str(ROOT / "xtask" / "src" / "dist"))
from tandem_rl import _trl


def default(field):
    value = field.default
    if value is dataclasses.MISSING:
        value = None if field.default_factory is dataclasses.MISSING else field.default_factory()
    # Choices are texts in a configuration.
    return getattr(value, "value", value)


if __name__ == "__main__":
    stored = {**golden("trl_1.16_defaults.json"), **_trl.DEFAULTS}
    fields = {field.name: default(field) for field in dataclasses.fields(GRPOConfig)}
    other = [key for key, value in stored.items() if key not in fields or fields[key] != value]
    if other:
        print("other defaults:", {key: (fields.get(key, "no such option"), stored[key]) for key in other})
    answer(f"{len(stored)} options", default=len(other))
