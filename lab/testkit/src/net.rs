//! Lab of one test: namespaces and devices with a name of their own, removed on drop.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use namespaces::netns::{NetNs, in_namespace};
use netlink::{Link, Netlink};
use topology::{Lab, LinkEnd, Plan};

use crate::run::{Output, run};

/// Number of labs that this process has made.
static LABS: AtomicU32 = AtomicU32::new(0);

/// Lab that is removed on drop.
#[derive(Debug)]
pub struct Net {
    plan: Plan,
}

impl Net {
    /// Makes a lab from a topology without its name.
    ///
    /// # Errors
    /// The text is no topology, or the kernel cannot make it.
    pub fn up(topology: &str) -> Result<Self> {
        let number = LABS.fetch_add(1, Ordering::Relaxed);
        let name = format!("tt-sys-{}-{number}", std::process::id());
        let plan = Lab::parse(&format!("name = \"{name}\"\n{topology}"), "test.toml")?;
        topology::up(&plan, &mut |_| {})?;
        Ok(Self { plan })
    }

    /// Makes two hosts, `client` and `server`, and the router `r1` between them.
    ///
    /// # Errors
    /// The kernel cannot make it.
    pub fn line(mtu: u32) -> Result<Self> {
        let hosts = "[[host]]\nname = \"client\"\n[[host]]\nname = \"server\"\n";
        let link = |peers: &str| format!("[[link]]\nends = {peers}\nmtu = {mtu}\n");
        let links = link("[\"client\", \"r1\"]") + &link("[\"r1\", \"server\"]");
        Self::up(&format!("{hosts}[[router]]\nname = \"r1\"\n{links}"))
    }

    /// Returns the plan of the lab.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the namespace of a node of the lab.
    ///
    /// # Errors
    /// The node does not exist.
    pub fn namespace(&self, node: &str) -> Result<NetNs> {
        let found = self.plan.node(node).with_context(|| format!("no node '{node}' in the lab"))?;
        Ok(NetNs::open(&found.namespace)?)
    }

    /// Returns a netlink socket in the namespace of a node.
    ///
    /// # Errors
    /// The node does not exist.
    pub fn netlink(&self, node: &str) -> Result<Netlink> {
        Ok(Netlink::open_in(&self.namespace(node)?)?)
    }

    /// Returns the end of the link from `node` to `peer`.
    ///
    /// # Errors
    /// The link does not exist.
    pub fn end<'net>(&'net self, node: &'net str, peer: &str) -> Result<&'net LinkEnd> {
        let links = self.plan.ends_at(node);
        let mut ends = links.filter(|(link, _)| link.ends.iter().any(|e| e.node.as_str() == peer));
        let (_, end) = ends.next().with_context(|| format!("no link from '{node}' to '{peer}'"))?;
        Ok(end)
    }

    /// Returns the current state of the device of the link from `node` to `peer`.
    ///
    /// # Errors
    /// The link does not exist.
    pub fn device(&self, node: &str, peer: &str) -> Result<Link> {
        Ok(self.netlink(node)?.link(&self.end(node, peer)?.device)?)
    }

    /// Returns the Ethernet address of that device.
    ///
    /// # Errors
    /// The link does not exist.
    pub fn mac(&self, node: &str, peer: &str) -> Result<[u8; 6]> {
        self.device(node, peer)?.mac.context("a veth device has an Ethernet address")
    }

    /// Returns the IPv4 address of a node on its link to a peer.
    ///
    /// # Errors
    /// The link does not exist.
    pub fn v4(&self, node: &str, peer: &str) -> Result<Ipv4Addr> {
        match self.end(node, peer)?.v4.address() {
            std::net::IpAddr::V4(address) => Ok(address),
            std::net::IpAddr::V6(_) => anyhow::bail!("the plan has an IPv6 address as v4"),
        }
    }

    /// Returns the IPv6 address of a node on its link to a peer.
    ///
    /// # Errors
    /// The link does not exist.
    pub fn v6(&self, node: &str, peer: &str) -> Result<Ipv6Addr> {
        match self.end(node, peer)?.v6.address() {
            std::net::IpAddr::V6(address) => Ok(address),
            std::net::IpAddr::V4(_) => anyhow::bail!("the plan has an IPv4 address as v6"),
        }
    }

    /// Runs a program in a node of the lab and waits for it.
    ///
    /// # Errors
    /// Same as [`run`](crate::run()).
    pub fn run(&self, node: &str, argv: &[&str], timeout: Duration) -> Result<Output> {
        run(&self.namespace(node)?, argv, timeout)
    }

    /// Runs a closure on a thread in a node of the lab: sockets made there stay there.
    ///
    /// # Errors
    /// The node does not exist.
    pub fn within<T: Send>(&self, node: &str, closure: impl FnOnce() -> T + Send) -> Result<T> {
        Ok(in_namespace(&self.namespace(node)?, closure)?)
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        if let Err(error) = topology::down(self.plan.lab.as_str()) {
            eprintln!("the lab was not removed: {error}");
        }
    }
}
