//! Every target for ten seconds, or `TANDEM_FUZZ_SECONDS`.

use fuzz::{TARGETS, inputs};
use harness::fuzz::explore;
use shared_bounds::Metered;

#[global_allocator]
static MEMORY: Metered = Metered;

fn try_target(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).unwrap();
    explore(name, &inputs(target), target.parse);
}

macro_rules! tests {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                try_target(stringify!($name));
            }
        )*

        #[test]
        fn every_target_is_tried() {
            assert_eq!(TARGETS.map(|target| target.name), [$(stringify!($name)),*]);
        }
    };
}

tests! {
    frames fleet_frames endpoint manifest rounded graph safetensors index store_index config_json
    model_directory tokenizer template
    dataset dataset_card
    run_toml answers tool_calls
}
