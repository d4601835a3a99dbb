//! Stations of a service: by name, by number, by timer, with the payload that they may keep
//! together.

use crate::listener::StationId;
use crate::settings::Settings;
use crate::station::{Name, Station};
use reflector::{Ask, Channel};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;
use units::{Account, Bytes, Held, Nanos};

/// Numbers of channels, listeners and relays, never reused.
#[derive(Debug, Default)]
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) const fn next(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }
}

/// Stations by number.
pub(crate) struct Stations {
    settings: Settings,
    account: Option<Rc<dyn Account>>,
    all: BTreeMap<StationId, Station>,
    /// Channels that a listener may join.
    names: BTreeMap<Name, StationId>,
    timers: BTreeSet<(Nanos, StationId)>,
    /// Payload that all of them may keep.
    payload: Bytes,
}

impl Stations {
    pub(crate) const fn new(settings: Settings) -> Self {
        Self {
            settings,
            account: None,
            all: BTreeMap::new(),
            names: BTreeMap::new(),
            timers: BTreeSet::new(),
            payload: Bytes::ZERO,
        }
    }

    /// Sets the account that channels' payload is charged to from now on.
    pub(crate) fn set_account(&mut self, account: Rc<dyn Account>) {
        self.account = Some(account);
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Station> {
        self.all.values()
    }

    pub(crate) fn get(&self, id: StationId) -> Option<&Station> {
        self.all.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: StationId) -> Option<&mut Station> {
        self.all.get_mut(&id)
    }

    /// Returns the payload that all channels may keep.
    pub(crate) const fn payload(&self) -> Bytes {
        self.payload
    }

    /// Returns the time of the first timer.
    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Returns a station whose timer has expired.
    pub(crate) fn due(&self, now: Nanos) -> Option<StationId> {
        self.timers.first().filter(|(at, _)| *at <= now).map(|(_, id)| *id)
    }

    /// Returns the channel of a name, or a new one if no existing one can be joined; `None` if a
    /// limit is reached. `client` is the client for which its origin is asked.
    pub(crate) fn find_or_open(
        &mut self,
        name: &Name,
        ask: &Ask,
        client: SocketAddr,
        numbers: &mut Numbers,
    ) -> Option<StationId> {
        let there = self.names.get(name).copied();
        let open = there.filter(|id| self.all.get(id).is_some_and(|it| it.channel.is_open()));
        if open.is_some() {
            return open;
        }
        let channel = Channel::new(self.settings.channel, ask);
        let payload_max = channel.payload_max();
        let fits = self.payload + payload_max <= self.settings.payload_max;
        if !fits || self.all.len() >= self.settings.channels_max {
            return None;
        }
        let share = Held::take(self.account.clone(), payload_max)?;
        let id = StationId(numbers.next());
        self.names.insert(name.clone(), id);
        self.payload += payload_max;
        self.all.insert(id, Station::new(channel, name.clone(), client, share));
        Some(id)
    }

    /// Updates a channel's payload limit and timer; removes and returns it when no listener is
    /// left.
    pub(crate) fn update(&mut self, id: StationId) -> Option<Station> {
        let station = self.all.get_mut(&id)?;
        self.payload = self.payload.saturating_sub(station.share());
        station.shrink_share();
        self.payload += station.share();
        let is_over = station.channel.is_over();
        let timer = if is_over { None } else { station.poll_timeout() };
        let before = station.replace_timer(timer);
        if timer != before {
            if let Some(before) = before {
                self.timers.remove(&(before, id));
            }
            self.timers.extend(timer.map(|at| (at, id)));
        }
        if !is_over {
            return None;
        }
        let station = self.all.remove(&id)?;
        if self.names.get(station.name()) == Some(&id) {
            self.names.remove(station.name());
        }
        Some(station)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::station::KeySource;
    use http1::{Headers, RequestHead, Version};

    fn open(stations: &mut Stations, numbers: &mut Numbers, key: u8) -> Option<StationId> {
        let server: SocketAddr = "192.0.2.1:80".parse().unwrap();
        let mut headers = Headers::new();
        headers.add(b"Host", b"radio").unwrap();
        let request = RequestHead::new(b"GET", b"/live", Version::Http11, headers).unwrap();
        let name = Name { server, key: KeySource::Module([key].into()) };
        stations.find_or_open(&name, &Ask::new(&request).unwrap(), server, numbers)
    }

    #[test]
    fn one_name_is_one_channel_within_the_limit() {
        let settings = Settings { channels_max: 2, ..Settings::default() };
        let (mut stations, mut numbers) = (Stations::new(settings), Numbers::default());
        let first = open(&mut stations, &mut numbers, 1);
        assert_eq!((first, stations.len()), (Some(StationId(1)), 1));
        assert_eq!(open(&mut stations, &mut numbers, 1), first);
        assert_eq!(open(&mut stations, &mut numbers, 2), Some(StationId(2)));
        assert_eq!(open(&mut stations, &mut numbers, 3), None);
        assert_eq!(stations.len(), 2);
    }

    #[test]
    fn payload_of_all_channels_is_limited() {
        let (mut stations, mut numbers) = (Stations::new(Settings::default()), Numbers::default());
        open(&mut stations, &mut numbers, 1).unwrap();
        let payload_max = stations.payload();
        assert!(payload_max > Bytes::ZERO);
        let mut stations = Stations::new(Settings { payload_max, ..Settings::default() });
        assert!(open(&mut stations, &mut numbers, 1).is_some());
        assert!(open(&mut stations, &mut numbers, 2).is_none());
    }
}
