//! Tests of the fetch queue: single cases, random histories, and nodes that ask each other.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

type Table = FetchQueue<u32, u8, &'static str>;

const FAR: Hops = Hops::MAX;

fn waits(asked: RequestOutcome<&'static str>) -> Waiter {
    match asked {
        RequestOutcome::Waits(waiter) => waiter,
        other => panic!("{other:?}"),
    }
}

fn fetch(digest: u32) -> Fetch<u32> {
    Fetch { digest, hops: FAR }
}

#[test]
fn ten_thousand_requests_for_one_module_cause_one_fetch_and_the_first_pays() {
    let mut table = Table::default();
    let mut all = Vec::new();
    for number in 0..10_000_u32 {
        let payer = u8::try_from(number % 7).unwrap();
        all.push((waits(table.ask(Nanos(u64::from(number)), 5, FAR, payer)), payer));
        let begun = table.poll_fetch();
        assert_eq!(begun, (number == 0).then(|| fetch(5)), "the first begins it");
    }
    let ended = table.ended(fetch(5)).unwrap();
    assert_eq!((ended.payer, ended.waited), (0, all));
    assert_eq!((table.count(), table.poll_fetch()), ((0, 0), None));
    assert_eq!(table.ended(fetch(5)), None, "it ends once");
}

#[test]
fn ten_thousand_requests_of_one_payer_fit_and_those_of_another_beside_them() {
    let mut table = Table::default();
    let mut taken = 0;
    while matches!(table.ask(Nanos(0), 1, FAR, 1), RequestOutcome::Waits(_)) {
        taken += 1;
    }
    assert!(taken >= 10_000, "{taken}");
    assert!(matches!(table.ask(Nanos(0), 1, FAR, 2), RequestOutcome::Waits(_)));
    assert_eq!(table.ask(Nanos(0), 2, FAR, 1), RequestOutcome::Full);
}

#[test]
fn a_request_that_is_cancelled_does_not_pay_unless_it_was_the_last() {
    let mut table = Table::default();
    let [first, second, third] = [1, 2, 3].map(|payer| waits(table.ask(Nanos(0), 9, FAR, payer)));
    assert_eq!(table.poll_fetch(), Some(fetch(9)));
    table.cancel(first);
    let mut next = table.clone();
    let ended = next.ended(fetch(9)).unwrap();
    assert_eq!((ended.payer, ended.waited), (2, vec![(second, 2), (third, 3)]));
    table.cancel(third);
    table.cancel(second);
    assert!(!table.is_wanted(9));
    let ended = table.ended(fetch(9)).unwrap();
    assert_eq!((ended.payer, ended.waited), (2, vec![]));
}

#[test]
fn a_module_that_no_request_waits_for_is_not_fetched() {
    let mut table = Table::default();
    let waiter = waits(table.ask(Nanos(0), 9, FAR, 1));
    table.cancel(waiter);
    table.cancel(waiter);
    assert_eq!((table.poll_fetch(), table.count()), (None, (0, 0)));
}

#[test]
fn a_failed_fetch_is_remembered_for_a_while_and_a_missing_module_for_longer() {
    let mut table = Table::default();
    for (digest, miss, how_long) in
        [(1, Miss::NotThere, NOT_THERE_FOR), (2, Miss::Failed, FAILED_FOR)]
    {
        waits(table.ask(Nanos(0), digest, FAR, 1));
        let fetch = table.poll_fetch().unwrap();
        table.ended(fetch).unwrap();
        table.remember(Nanos(100), fetch, None, miss, "why");
        let until = Nanos(100 + how_long.0);
        let missed = RequestOutcome::Missed { reason: "why", until };
        assert_eq!(table.ask(Nanos(until.0 - 1), digest, FAR, 2), missed);
        assert_eq!(table.poll_fetch(), None, "nobody is asked meanwhile");
        waits(table.ask(until, digest, FAR, 2));
        assert!(table.poll_fetch().is_some());
    }
}

#[test]
fn a_miss_holds_for_its_payer_only_and_until_the_module_arrives() {
    let mut table = Table::default();
    table.remember(Nanos(0), fetch(1), Some(4), Miss::NotThere, "not yours");
    assert!(matches!(table.ask(Nanos(1), 1, FAR, 4), RequestOutcome::Missed { .. }));
    waits(table.ask(Nanos(1), 1, FAR, 5));
    table.arrived(1);
    waits(table.ask(Nanos(1), 1, FAR, 4));
}

#[test]
fn a_miss_with_few_hops_does_not_answer_a_request_with_more_hops() {
    let mut table = Table::default();
    let near = Fetch { digest: 1, hops: Hops::new(1) };
    table.remember(Nanos(0), near, None, Miss::NotThere, "near");
    assert!(matches!(table.ask(Nanos(1), 1, Hops::new(1), 1), RequestOutcome::Missed { .. }));
    assert!(matches!(table.ask(Nanos(1), 1, Hops::NONE, 1), RequestOutcome::Missed { .. }));
    waits(table.ask(Nanos(1), 1, FAR, 1));
}

#[test]
fn one_payer_has_at_most_half_of_the_fetches_and_others_come_before_its_next() {
    let mut table = Table::default();
    let mut digest = 0;
    while matches!(table.ask(Nanos(0), digest, FAR, 1), RequestOutcome::Waits(_)) {
        digest += 1;
    }
    assert_eq!(usize::try_from(digest).unwrap(), WANTED_MAX / 2);
    let begun = std::iter::from_fn(|| table.poll_fetch()).count();
    assert_eq!(begun, FETCHES_MAX / 2);
    waits(table.ask(Nanos(0), 1_000, FAR, 2));
    assert_eq!(table.poll_fetch(), Some(fetch(1_000)));
}

#[test]
fn memory_of_misses_is_bounded_and_the_oldest_make_room() {
    let mut table = Table::default();
    for number in 0..3 * u32::try_from(MISSES_MAX).unwrap() {
        table.remember(Nanos(u64::from(number)), fetch(number), None, Miss::NotThere, "");
        assert!(table.missed <= MISSES_MAX);
        assert_eq!(table.missed, table.misses.values().map(Vec::len).sum::<usize>());
    }
    let last = 3 * u32::try_from(MISSES_MAX).unwrap() - 1;
    assert!(matches!(
        table.ask(Nanos(u64::from(last)), last, FAR, 1),
        RequestOutcome::Missed { .. }
    ));
    waits(table.ask(Nanos(u64::from(last)), 0, FAR, 1));
}

#[test]
fn requests_that_nodes_send_on_have_one_less_each_time() {
    let mut hops = Hops::new(255);
    assert_eq!(hops, Hops::MAX);
    for left in (0..Hops::MAX.get()).rev() {
        hops = hops.next().unwrap();
        assert_eq!(hops.get(), left);
    }
    assert_eq!((hops, hops.next()), (Hops::NONE, None));
}

/// Event of a random history.
#[derive(Clone, Copy, Debug)]
enum Step {
    Ask(u32, u8, u8),
    Begin,
    End(usize, Option<Miss>),
    Cancel(usize),
    Later(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let miss = prop_oneof![Just(None), Just(Some(Miss::NotThere)), Just(Some(Miss::Failed))];
    let step = prop_oneof![
        4 => (0..40_u32, 0..=4_u8, 0..5_u8).prop_map(|(digest, hops, payer)| Step::Ask(digest, hops, payer)),
        2 => Just(Step::Begin),
        2 => (any::<usize>(), miss).prop_map(|(which, miss)| Step::End(which, miss)),
        1 => any::<usize>().prop_map(Step::Cancel),
        1 => (0..20_000_u64).prop_map(Step::Later),
    ];
    proptest::collection::vec(step, 0..300)
}

proptest! {
    /// Every waiting request is answered once or cancelled, no module is fetched twice at a time,
    /// no miss is fetched again before it expires, and the limits hold.
    #[test]
    fn every_waiting_request_is_answered_once_in_any_history(steps in steps()) {
        let mut table = Table::default();
        let mut now = Nanos(0);
        let mut waiting: Vec<(Waiter, u32)> = Vec::new();
        let mut begun: Vec<Fetch<u32>> = Vec::new();
        let mut missed: BTreeMap<u32, (Hops, Nanos)> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Ask(digest, hops, payer) => {
                    let hops = Hops::new(hops);
                    let asked = table.ask(now, digest, hops, payer);
                    if missed.get(&digest).is_some_and(|(with, until)| *with >= hops && *until > now) {
                        let is_missed = matches!(asked, RequestOutcome::Missed { .. });
                        prop_assert!(is_missed);
                    }
                    if let RequestOutcome::Waits(waiter) = asked {
                        waiting.push((waiter, digest));
                    }
                }
                Step::Begin => {
                    if let Some(fetch) = table.poll_fetch() {
                        prop_assert!(!begun.contains(&fetch), "{fetch:?} twice");
                        begun.push(fetch);
                    }
                }
                Step::End(which, miss) if !begun.is_empty() => {
                    let fetch = begun.swap_remove(which % begun.len());
                    let ended = table.ended(fetch).unwrap();
                    let answered_to: BTreeSet<Waiter> = ended.waited.iter().map(|(it, _)| *it).collect();
                    prop_assert_eq!(answered_to.len(), ended.waited.len());
                    prop_assert!(answered_to.iter().all(|it| waiting.contains(&(*it, fetch.digest))));
                    prop_assert!(ended.waited.first().is_none_or(|(_, payer)| *payer == ended.payer));
                    waiting.retain(|(it, _)| !answered_to.contains(it));
                    match miss {
                        None => {
                            table.arrived(fetch.digest);
                            missed.remove(&fetch.digest);
                        }
                        Some(miss) => {
                            table.remember(now, fetch, None, miss, "");
                            let how_long = if miss == Miss::Failed { FAILED_FOR } else { NOT_THERE_FOR };
                            let new = (fetch.hops, now + how_long);
                            missed.insert(fetch.digest, new);
                        }
                    }
                }
                Step::Cancel(which) if !waiting.is_empty() => {
                    let (waiter, _) = waiting.swap_remove(which % waiting.len());
                    table.cancel(waiter);
                }
                Step::End(..) | Step::Cancel(_) => {}
                Step::Later(ms) => now += Nanos::from_millis(ms),
            }
            prop_assert_eq!(table.count().1, waiting.len());
            let of = |hops: Hops| begun.iter().filter(|it| it.hops == hops).count();
            prop_assert!((0..=4).all(|hops| of(Hops::new(hops)) <= FETCHES_MAX));
            prop_assert!(table.count().0 <= WANTED_MAX);
        }
        // Once all fetches have ended, no request is left.
        while table.count().0 > 0 {
            begun.extend(std::iter::from_fn(|| table.poll_fetch()));
            let fetch = begun.pop().expect("somebody waits, so something is fetched");
            table.ended(fetch).unwrap();
        }
        prop_assert_eq!(table.count(), (0, 0));
    }

    /// Nodes in any graph of repositories that ask each other for a missing module come to an
    /// end, with a bounded number of requests for each node, repository and number of hops.
    #[test]
    fn nodes_that_ask_each_other_end(
        edges in proptest::collection::btree_set((0..5_usize, 0..5_usize), 0..20),
        order in proptest::collection::vec(any::<usize>(), 1..40),
    ) {
        let mut world = World::new(&edges);
        (0..5).for_each(|node| world.ask(node, FAR, None));
        let mut order = order.iter().cycle();
        let mut requests = 0;
        while let Some(step) = world.step(*order.next().unwrap()) {
            requests += step;
            prop_assert!(requests <= edges.len() * usize::from(FAR.get()), "{requests}");
        }
        prop_assert_eq!(world.answered, 5, "everybody has an answer");
    }
}

/// Fetch of a node, for which another node is asked.
type Asker = (usize, Fetch<u32>);

/// Nodes, each with its repositories, and one module that none has.
struct World {
    repositories: Vec<Vec<usize>>,
    tables: Vec<FetchQueue<u32, u8, &'static str>>,
    /// Running fetches: the node, the fetch, the repository that is asked next, and whether its
    /// answer is awaited.
    fetches: Vec<(usize, Fetch<u32>, usize, bool)>,
    /// Origin of each waiting request: another node's fetch, or `None` for somebody outside.
    waiters: BTreeMap<(usize, Waiter), Option<Asker>>,
    answered: usize,
}

impl World {
    fn new(edges: &BTreeSet<(usize, usize)>) -> Self {
        let of = |node| edges.iter().filter(move |(from, _)| *from == node).map(|(_, to)| *to);
        Self {
            repositories: (0..5).map(|node| of(node).collect()).collect(),
            tables: vec![FetchQueue::default(); 5],
            fetches: Vec::new(),
            waiters: BTreeMap::new(),
            answered: 0,
        }
    }

    /// Asks a node; `by` is the fetch of the node that asks.
    fn ask(&mut self, node: usize, hops: Hops, by: Option<Asker>) {
        match self.tables[node].ask(Nanos(0), 7, hops, 0) {
            RequestOutcome::Waits(waiter) => drop(self.waiters.insert((node, waiter), by)),
            RequestOutcome::Missed { .. } | RequestOutcome::Full => self.answer(by),
        }
    }

    /// Answers that the module does not exist.
    fn answer(&mut self, by: Option<Asker>) {
        let Some((node, fetch)) = by else {
            self.answered += 1;
            return;
        };
        let is_it = |it: &&mut (usize, Fetch<u32>, usize, bool)| it.0 == node && it.1 == fetch;
        self.fetches.iter_mut().find(is_it).unwrap().3 = false;
    }

    /// Makes one of the possible steps; returns the number of requests that it sends, `None` if no
    /// step is possible.
    fn step(&mut self, choice: usize) -> Option<usize> {
        for node in 0..5 {
            while let Some(fetch) = self.tables[node].poll_fetch() {
                self.fetches.push((node, fetch, 0, false));
            }
        }
        let ready = self.fetches.iter().enumerate().filter(|(_, it)| !it.3).map(|(at, _)| at);
        let ready: Vec<usize> = ready.collect();
        if ready.is_empty() {
            assert!(self.fetches.is_empty(), "nodes wait for each other: {:?}", self.fetches);
            return None;
        }
        let at = ready[choice % ready.len()];
        let (node, fetch, next, _) = self.fetches[at];
        match (self.repositories[node].get(next).copied(), fetch.hops.next()) {
            (Some(repository), Some(hops)) => {
                (self.fetches[at].2, self.fetches[at].3) = (next + 1, true);
                self.ask(repository, hops, Some((node, fetch)));
                Some(1)
            }
            _ => {
                self.fetches.remove(at);
                let ended = self.tables[node].ended(fetch).unwrap();
                self.tables[node].remember(Nanos(0), fetch, None, Miss::NotThere, "");
                for (waiter, _) in ended.waited {
                    let by = self.waiters.remove(&(node, waiter)).unwrap();
                    self.answer(by);
                }
                Some(0)
            }
        }
    }
}
