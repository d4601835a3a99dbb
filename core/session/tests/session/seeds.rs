//! Reproducible random sets: generated from seeds, so that a failure can be repeated.

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseResult, TestError, TestRng, TestRunner};
use std::fmt::Debug;

/// Random sets in an ordinary run.
const SETS: u64 = 1_000;
/// Random sets with `TAM_SOAK=1`.
const SETS_SOAK: u64 = 100_000;

/// Tests as many sets as are configured, or the one whose seed is in `TAM_SEED`. The first failing
/// set is minimized and reported with its seed.
pub fn for_many_sets<S>(sets: &S, holds: impl Fn(S::Value) -> TestCaseResult)
where
    S: Strategy,
    S::Value: Debug,
{
    let count = if std::env::var_os("TAM_SOAK").is_some() { SETS_SOAK } else { SETS };
    let one = std::env::var("TAM_SEED").ok().map(|seed| seed.parse::<u64>().unwrap());
    let seeds = one.map_or(0..count, |seed| seed..seed + 1);
    for seed in seeds {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let config = Config {
            cases: 1,
            failure_persistence: None,
            max_shrink_iters: 100_000,
            ..Config::default()
        };
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let mut runner = TestRunner::new_with_rng(config, rng);
        match runner.run(sets, &holds) {
            Ok(()) => {}
            Err(TestError::Fail(why, set)) => {
                panic!("TAM_SEED={seed} repeats this: {why}\nthe smallest set that fails: {set:#?}")
            }
            Err(TestError::Abort(why)) => panic!("TAM_SEED={seed}: {why}"),
        }
    }
}
