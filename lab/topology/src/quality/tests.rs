//! Tests of the qualities of links, and of refused values.

use super::*;
use crate::{Lab, NodeKind, Plan};
use proptest::prelude::*;

fn plan(link: &str) -> Result<Plan, PlanError> {
    let nodes = "name = 'q'\nhost = [{name = 'a'}, {name = 'link-1'}]\n";
    Lab::parse(&format!("{nodes}[[link]]\nends = ['a', 'link-1']\n{link}\n"), "q.toml")
}

fn quality(link: &str) -> Quality {
    let plan = plan(link).unwrap();
    plan.links[0].through.clone().unwrap().quality
}

#[test]
fn a_link_with_a_quality_has_a_node_in_it() {
    let text = "delay = '10ms/1.5ms'\nloss = '0.1%'\nburst = 3\nrate = '10Mbit'\nqueue = '64KiB'\n\
                seed = 7\nmtu = 1400";
    let plan = plan(text).unwrap();
    let through = plan.links[0].through.as_ref().unwrap();
    let node = plan.node(through.node.as_str()).unwrap();
    // The name of the first link's node is taken by a host.
    assert_eq!((node.name.as_str(), node.kind), ("link-1-2", NodeKind::Link));
    assert_eq!((node.namespace.as_str(), node.routes.len()), ("tam-q-link-1-2", 0));
    assert_eq!(plan.links[0].rate, None, "the rate is kept by the node in the link");
    let quality = &through.quality;
    assert_eq!(quality.delay, Some([Nanos(10_000_000), Nanos(1_500_000)]));
    assert_eq!(quality.loss, Some([Millionths(1_000); 2]));
    assert_eq!(quality.text(), "delay 10ms/1500us, loss 0.1%, burst 3, rate 10Mbit, queue 64KiB");
    let parameters = quality.parameters();
    assert_eq!(parameters["delay"].as_str(), Some("10ms/1500us"));
    assert_eq!(parameters["seed"].as_integer(), Some(7));
    assert_eq!(parameters.len(), 6);
    let json = serde_json::to_value(&plan).unwrap();
    assert_eq!(json["links"][0]["through"]["quality"]["loss_millionths"][1], 1_000, "{json:#}");
    assert_eq!(serde_json::from_value::<Plan>(json).unwrap(), plan);
}

#[test]
fn a_rate_alone_stays_with_the_devices_and_two_rates_do_not() {
    let one = plan("rate = '10Mbit'").unwrap();
    assert_eq!(one.links[0].rate, Some(BitsPerSecond(10_000_000)));
    assert_eq!((one.links[0].through.is_none(), one.nodes.len()), (true, 2));
    assert_eq!(quality("rate = '10Mbit/64kbit'").text(), "rate 10Mbit/64kbit");
}

#[test]
fn a_refused_quality_says_the_line_and_what_belongs_there() {
    for (link, expected) in [
        ("delay = '10'", "q.toml:5: 'delay' is '10'; it must be a time up to 60s"),
        ("jitter = '61s'", "'jitter' is '61s'; it must be a time"),
        ("delay = '10ms/'", "'delay' is '10ms/'"),
        ("delay = '0.1us'", "'delay' is '0.1us'"),
        ("delay = 10", "'delay' must be a text in quotes"),
        ("loss = '101%'", "'loss' is '101%'; it must be a share from 0% to 100%"),
        ("loss = '0.00001%'", "'loss' is '0.00001%'"),
        ("reorder = '1'", "'reorder' is '1'"),
        ("delay = '1ms'\nrate = '10MBit'", "q.toml:6: 'rate' is '10MBit'; it must be a whole"),
        ("rate = '1Mbit'\nqueue = '1KiB'", "'queue' is '1KiB'; it must be a size from 2KiB"),
        ("queue = '64KiB'", "'queue' does nothing without 'rate'; add one, such as rate ="),
        ("late = '1ms'", "'late' does nothing without 'reorder'"),
        ("loss = '1%'\nburst = 0", "'burst' is 0; it must be from 1 to 10000"),
        ("dealy = '1ms'", "unknown key 'dealy' in [[link]]; did you mean 'delay'?"),
    ] {
        let error = plan(link).unwrap_err().to_string();
        assert!(error.contains(expected), "{link}: {error}");
    }
}

proptest! {
    /// Parameters written for the service are read back as the same quality.
    #[test]
    fn a_quality_that_is_written_is_read_again(
        times in prop::array::uniform6(0_u64..=60_000_000),
        shares in prop::array::uniform6(0_u32..=1_000_000),
        rates in prop::array::uniform2(1_000_u64..=100_000_000_000),
        sizes in prop::array::uniform2(2_048_u64..=4 << 20),
        burst in 1..=10_000_u64,
        seed in 0..=SEED_MAX,
    ) {
        let times = times.map(|us| Nanos(us * 1_000));
        let shares = shares.map(Millionths);
        let wished = Quality {
            delay: Some([times[0], times[1]]),
            jitter: Some([times[2], times[3]]),
            loss: Some([shares[0], shares[1]]),
            burst: Some(burst),
            reorder: Some([shares[2], shares[3]]),
            late: Some([times[4], times[5]]),
            duplicate: Some([shares[4], shares[5]]),
            rate: Some(rates.map(BitsPerSecond)),
            queue: Some(sizes.map(Bytes)),
            seed: Some(seed),
        };
        let mut parameters = wished.parameters();
        let burst = parameters["burst"].as_str().unwrap().parse().unwrap();
        parameters.insert("burst".to_owned(), toml::Value::Integer(burst));
        prop_assert_eq!(quality(&parameters.to_string()), wished);
    }
}
