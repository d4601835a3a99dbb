//! Tables of fixed size: choice of the entry that a new one replaces.

/// Returns the entry of a bucket to replace: the first of those with the least age. The age is the
/// time at which an entry expires, 0 for one that is empty or has expired, and `u64::MAX` for one
/// that must not be replaced; `None` if all are such.
///
/// ```
/// use tam::table::oldest;
///
/// let mut expire_ms = [900, 400, u64::MAX, 400];
/// *oldest(&mut expire_ms, |at| *at).unwrap() = 1_000;
/// assert_eq!(expire_ms, [900, 1_000, u64::MAX, 400]);
/// ```
#[inline]
pub fn oldest<T>(bucket: &mut [T], age: impl Fn(&T) -> u64) -> Option<&mut T> {
    let (mut found, mut least) = (bucket.len(), u64::MAX);
    for (at, entry) in bucket.iter().enumerate() {
        let age = age(entry);
        if age < least {
            (found, least) = (at, age);
        }
    }
    bucket.get_mut(found)
}

#[cfg(test)]
mod tests {
    use super::oldest;

    #[test]
    fn an_empty_entry_comes_before_the_oldest_and_a_lasting_one_never() {
        let found = |mut ages: Vec<(usize, u64)>| oldest(&mut ages, |it| it.1).map(|it| it.0);
        assert_eq!(found(vec![(0, 5), (1, 0), (2, 3), (3, 0)]), Some(1));
        assert_eq!(found(vec![(0, u64::MAX), (1, 7), (2, 6)]), Some(2));
        assert_eq!(found(vec![(0, u64::MAX), (1, u64::MAX)]), None);
        assert_eq!(found(vec![]), None);
    }
}
