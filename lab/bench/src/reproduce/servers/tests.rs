//! Tests of the results of passes, and of the distance of servers, without a node.

use super::*;
use crate::line::Line;

fn site(cloud: usize, rate: u64, length: usize) -> Site {
    let round_trip = Duration::from_millis(u64::from(CLOUDS[cloud]));
    Site { cloud, round_trip, rate: BitsPerSecond(rate), page: vec![b'a'; length] }
}

#[test]
fn savings_are_reported_by_cloud_and_by_speed() {
    let all = [site(0, 10_000, 2_000), site(0, 400_000, 50_000), site(3, 800_000, 100_000)];
    let pass = |times: [f64; 3], at_once| Pass {
        times: times.map(Some).to_vec(),
        at_once,
        ..Pass::default()
    };
    let mut broken = pass([1.0, 0.0, 2.0], 399);
    (broken.times[1], broken.failed) = (None, vec!["it was cut off".to_owned()]);
    let rounds = [
        [pass([1.1, 1.0, 1.0], 400), pass([1.0, 2.0, 4.0], 400)],
        [broken, pass([1.0, 2.0, 4.0], 400)],
    ];
    let drawn = drawn(&all, &rounds);
    let ours: Vec<f64> = drawn.compared.iter().map(|one| one.ours.unwrap().round()).collect();
    // The worse of the two rounds; 100,000 bytes in 1.5 s.
    assert_eq!(ours, [399.0, 2.0, 533.0]);
    assert_eq!(drawn.points.len(), 6);
    assert_eq!(drawn.points[0].curve, "compressed, 10 ms");
    assert_eq!(drawn.points[5].time_us, Some(4e6));
    let said = drawn.notes.join("\n");
    for part in [
        "in the median: +50.0 %; by round trip: 10 ms +22.5 %, 40 ms +0.0 %",
        "200 ms +62.5 %",
        "of slow servers -5.0 %, of the others +56.2 %",
        "1 of 3 are slower with the service, the worst by 50 ms of 1000 ms",
        "compressed: 1 failed, the first: it was cut off",
    ] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
}

#[test]
fn a_site_not_loaded_both_compressed_and_plain_is_not_compared() {
    let pass = |time| Pass { times: vec![time, Some(1.0)], ..Pass::default() };
    let times = times(2, &[[pass(None), pass(Some(1.0))]]);
    assert_eq!(times, [None, Some(Times { with: 1.0, without: 1.0 })]);
}

#[test]
fn servers_answer_with_the_delay_of_their_distance() {
    if !testbase::root_or_skip("servers_answer_with_the_delay_of_their_distance") {
        return;
    }
    let line = Line::of_tcp("t-servers").unwrap();
    let beyond = line.beyond().unwrap();
    let all: Arc<[Site]> = sites::sites(20, Duration::from_secs(1)).into();
    let servers = far::start(&beyond.namespace, Arc::clone(&all)).unwrap();
    let distance = distance::start(&line, Arc::clone(&all)).unwrap();
    let addresses: Vec<_> = (0..20).map(|number| sites::address(number, Variant::Plain)).collect();
    let visit = || visits::visit(&addresses, 7, &mut |_, _| Ok(()));
    let visited = netns::in_namespace(&line.source, visit).unwrap().unwrap();
    assert!((1..=7).contains(&visited.at_once), "{}", visited.at_once);
    for (site, visit) in all.iter().zip(visited.visits) {
        assert_eq!(body(&visit.answer.unwrap()).unwrap(), site.page);
        // One for the handshake, one for the first bytes.
        assert!(visit.time >= 2 * site.round_trip, "{:?} of {site:?}", visit.time);
    }
    servers.end().unwrap();
    distance.end().unwrap();
}
