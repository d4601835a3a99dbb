//! Shortest paths: at every node a route to the network of every link that it is not on.
//!
//! Breadth first by hop counts; equal paths are decided by the order of the links in the file.
//! Hosts are never on a path, as they do not forward: a network is reached through the router at
//! its end. Every node on a shortest path is one hop nearer than the one before, so the routes of
//! all nodes together have no loop.

use std::collections::VecDeque;

use super::{LinkSpec, NodeKind, NodeSpec, PlannedLink, PlannedRoute};

/// Returns the routes of each node, in the order of the nodes; of each, in the order of the links.
pub(crate) fn routes(
    nodes: &[NodeSpec],
    links: &[LinkSpec],
    planned: &[PlannedLink],
) -> Vec<Vec<PlannedRoute>> {
    let neighbours = neighbours(nodes.len(), links);
    (0..nodes.len())
        .map(|node| {
            let paths = shortest_paths(node, nodes, &neighbours);
            let far = links.iter().zip(planned).filter(|(link, _)| !link.ends.contains(&node));
            far.filter_map(|(link, target)| Some((first_step(link, nodes, &paths)?, target)))
                .flat_map(|(step, target)| route_via(step, target, planned))
                .collect()
        })
        .collect()
}

/// First hop of a path: a link, and which of its ends is the next node.
#[derive(Clone, Copy)]
struct Step {
    link: usize,
    end: usize,
}

/// Path to a node: its length, and its first hop.
#[derive(Clone, Copy)]
struct Path {
    hops: usize,
    first: Step,
}

/// Returns the links of each node, each as the step to the other end.
fn neighbours(nodes: usize, links: &[LinkSpec]) -> Vec<Vec<(usize, Step)>> {
    let mut neighbours = vec![Vec::new(); nodes];
    for (link, wish) in links.iter().enumerate() {
        let [first, second] = wish.ends;
        neighbours[first].push((second, Step { link, end: 1 }));
        neighbours[second].push((first, Step { link, end: 0 }));
    }
    neighbours
}

fn shortest_paths(
    from: usize,
    nodes: &[NodeSpec],
    neighbours: &[Vec<(usize, Step)>],
) -> Vec<Option<Path>> {
    let mut paths: Vec<Option<Path>> = vec![None; nodes.len()];
    let mut waiting = VecDeque::from([from]);
    while let Some(node) = waiting.pop_front() {
        if node != from && nodes[node].kind == NodeKind::Host {
            continue;
        }
        for &(next, step) in &neighbours[node] {
            if next != from && paths[next].is_none() {
                let (hops, first) = match paths[node] {
                    Some(path) => (path.hops + 1, path.first),
                    None => (1, step),
                };
                paths[next] = Some(Path { hops, first });
                waiting.push_back(next);
            }
        }
    }
    paths
}

/// Returns the first hop to a link's network: towards the nearer of its routers.
fn first_step(link: &LinkSpec, nodes: &[NodeSpec], paths: &[Option<Path>]) -> Option<Step> {
    link.ends
        .iter()
        .filter(|&&end| nodes[end].kind == NodeKind::Router)
        .filter_map(|&end| paths[end])
        .min_by_key(|path| path.hops)
        .map(|path| path.first)
}

fn route_via(step: Step, target: &PlannedLink, planned: &[PlannedLink]) -> [PlannedRoute; 2] {
    let gateway = &planned[step.link].ends[step.end];
    let network = &target.ends[0];
    [
        PlannedRoute { destination: network.v4.network(), via: gateway.v4.address() },
        PlannedRoute { destination: network.v6.network(), via: gateway.v6.address() },
    ]
}
