//! Tests of the shared state and its limits.

use super::*;

#[test]
fn a_value_is_swapped_only_if_unchanged() {
    let mut shared = Shared::default();
    assert_eq!(shared.get("vm", b"k"), None);
    assert_eq!(shared.set("vm", b"k", b"0", 7), Err(Refusal::Changed));
    shared.set("vm", b"k", b"1", 0).unwrap();
    let (value, cas) = shared.get("vm", b"k").unwrap();
    assert_eq!(value, b"1");
    shared.set("vm", b"k", b"2", cas).unwrap();
    assert_eq!(shared.set("vm", b"k", b"3", cas), Err(Refusal::Changed));
    assert_eq!(shared.get("vm", b"k").unwrap().0, b"2");
    assert_eq!(shared.get("other", b"k"), None);
}

#[test]
fn queues_keep_their_order_and_owner() {
    let mut shared = Shared::default();
    let queue = shared.register("vm", b"q", 4).unwrap();
    assert_eq!(shared.register("vm", b"q", 5), Ok(queue));
    assert_eq!(shared.resolve("vm", b"q"), Some(queue));
    assert_eq!(shared.resolve("other", b"q"), None);
    assert_eq!(shared.enqueue(queue, b"a"), Ok(5));
    assert_eq!(shared.enqueue(queue, b"b"), Ok(5));
    assert_eq!(shared.used().bytes, 2);
    assert_eq!(shared.dequeue(queue), Ok(b"a".to_vec()));
    assert_eq!(shared.dequeue(queue), Ok(b"b".to_vec()));
    assert_eq!(shared.dequeue(queue), Err(Refusal::Empty));
    assert_eq!(shared.dequeue(0), Err(Refusal::NotFound));
    assert_eq!(shared.enqueue(9, b""), Err(Refusal::NotFound));
    assert_eq!(shared.used().bytes, 0);
}

#[test]
fn metrics_count_by_kind() {
    let mut shared = Shared::default();
    let counter = shared.define(MetricType::Counter, b"c").unwrap();
    let gauge = shared.define(MetricType::Gauge, b"g").unwrap();
    let histogram = shared.define(MetricType::Histogram, b"h").unwrap();
    assert_eq!(shared.define(MetricType::Counter, b"c"), Ok(counter));
    assert_eq!(shared.define(MetricType::Gauge, b"c"), Err(Refusal::WrongKind));
    shared.increment(counter, 2).unwrap();
    assert_eq!(shared.increment(counter, -1), Err(Refusal::WrongKind));
    shared.record(gauge, 5).unwrap();
    shared.increment(gauge, -7).unwrap();
    assert_eq!((shared.value(counter), shared.value(gauge)), (Ok(2), Ok(0)));
    for value in [0, 1, 700, 1_023, u64::MAX] {
        shared.record(histogram, value).unwrap();
    }
    assert_eq!(shared.increment(histogram, 1), Err(Refusal::WrongKind));
    assert_eq!(shared.value(histogram), Err(Refusal::WrongKind));
    assert_eq!(shared.value(4), Err(Refusal::NotFound));
    let MetricValue::Histogram { count, sum, buckets } = &shared.metrics()[2].value else {
        panic!("it is a histogram");
    };
    assert_eq!((*count, *sum), (5, u64::MAX));
    assert_eq!((buckets[0], buckets[1], buckets[10], buckets[64]), (1, 1, 2, 1));
}

#[test]
fn each_limit_is_one() {
    let mut shared = Shared::default();
    let long = vec![0; SHARED_VALUE_MAX + 1];
    assert_eq!(shared.set("", &[0; SHARED_NAME_MAX + 1], b"", 0), Err(Refusal::Limit));
    assert_eq!(shared.set("", b"k", &long, 0), Err(Refusal::Limit));
    for number in 0..SHARED_ENTRIES_MAX as u32 {
        shared.set("", &number.to_le_bytes(), b"", 0).unwrap();
    }
    assert_eq!(shared.set("", b"one more", b"", 0), Err(Refusal::Limit));
    shared.set("", &0_u32.to_le_bytes(), b"known", 0).unwrap();
    for number in 0..QUEUES_MAX as u32 {
        shared.register("", &number.to_le_bytes(), 0).unwrap();
    }
    assert_eq!(shared.register("", b"one more", 0), Err(Refusal::Limit));
    for _ in 0..QUEUE_ITEMS_MAX {
        shared.enqueue(1, b"").unwrap();
    }
    assert_eq!(shared.enqueue(1, b""), Err(Refusal::Limit));
    for number in 0..METRICS_MAX {
        shared.define(MetricType::Gauge, number.to_string().as_bytes()).unwrap();
    }
    assert_eq!(shared.define(MetricType::Gauge, b"one more"), Err(Refusal::Limit));
    let full = vec![0; SHARED_VALUE_MAX];
    let refused = (0..).find(|_| shared.enqueue(2, &full).is_err()).unwrap();
    assert_eq!(refused, (SHARED_BYTES_MAX - 5 - 4 * SHARED_ENTRIES_MAX) / SHARED_VALUE_MAX);
}
