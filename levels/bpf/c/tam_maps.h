/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Keys and values shared between the front door and the daemon. The Rust half is
 * base/bpf-maps; a test there compares every size and offset. Numbers are host-endian
 * unless they end in _be. */
#ifndef TAM_MAPS_H
#define TAM_MAPS_H

#include <linux/types.h>

#define TAM_PORTS_MAX 64	/* ports of one node: their counters and sockets are arrays */
#define TAM_QUEUES_MAX 16	/* receive queues of one port */
#define TAM_RULES_MAX 16384	/* rules of one node; the rule's number indexes its counters */
#define TAM_MASKS_MAX 64	/* distinct sets of matched fields: the lookups of a cache miss */
#define TAM_HIDDEN_MASKS_MAX (3 * TAM_MASKS_MAX)	/* further lookups of a packet whose L4 is hidden */
#define TAM_MASKS_ALL (TAM_MASKS_MAX + TAM_HIDDEN_MASKS_MAX)
#define TAM_RULE_ENTRIES_MAX 262144	/* keys of one rule set: a rule with L4 port ranges has several */
#define TAM_FILTER_BITS 21	/* 2^21 bits for each rule set: one in eight is set when it is full */
#define TAM_FLOW_WAYS 8		/* ways of one set of the large cache; their tags are one word */
#define TAM_FLOWS_LISTED_MAX (1 << 20)	/* flows of all flow lists of one node */
#define TAM_LISTS_MAX (2 * TAM_MASKS_MAX + 1)	/* flow lists of both rule sets: each is a mask; 0 is none */
#define TAM_HASH_KEYS 16	/* one for each 4 bytes of a key */
#define TAM_FLOWS_MAX 8192	/* flow cache entries on each CPU, a power of two */
#define TAM_ROUTES_LEASE 1000	/* jiffies: 1 s at HZ=1000, 4 s at 250, 10 s at 100 */
#define TAM_VLANS_MAX 4096	/* VLAN devices above the ports */
#define TAM_FRAGMENTS_MAX 4096	/* datagrams whose later fragments are awaited */
#define TAM_OWN_MAX 65536	/* prefixes of IPv4 addresses of the machine itself */
#define TAM_ENTRIES_MAX 16384	/* entries of one node: each has a lane */
#define TAM_MODULES_MAX 4096	/* entries that can be below user level, the first ones: each has counters there */
#define TAM_EDGES_MAX 4		/* edges out of one entry */
#define TAM_REASONS_MAX 4096	/* pairs of entry and drop reason that are counted apart */
#define TAM_CYCLES_MAX 4096	/* counters of rounds: frames that share one are indistinguishable */
#define TAM_CYCLE_ROUNDS 64	/* rounds between cabled ports: for each new frame, and each heartbeat */
#define TAM_CYCLE_ROUNDS_MAX (1 << 16)	/* largest number of rounds of frames with the same hash */

/* Fields that a packet is matched by; fields that a rule does not match on are zero
 * in the rule's mask. IPv4 addresses fill the first four bytes. A frame that is
 * not IP has only VLAN, arrival port, MACs and ethertype, the rest is zero.
 *
 *  0               16              32    34    36    37    38    40    42  43   44    46    48
 * +---------------+---------------+-----+-----+-----+-----+-----+-----+---+----+-----+-----+
 * | source        | destination   |sport|dport|proto|ipver|vlan |port |dsc|frag|mask |hidd.|
 * +---------------+---------------+-----+-----+-----+-----+-----+-----+---+----+-----+-----+
 * | source MAC | destination MAC | ethertype | TCP flags | zero |
 * +------------+-----------------+-----------+-----------+------+
 *  48           54                60          62          63     64
 *
 */
struct tam_key {
	__u8 source[16];
	__u8 destination[16];
	__be16 source_port_be;
	__be16 destination_port_be;
	__u8 protocol;
	__u8 ip_version;	/* 4 or 6 */
	__u16 vlan;		/* TAM_VLAN_PRESENT | VLAN identifier of the outermost tag, or 0 */
	__u16 port;		/* arrival port's number */
	__u8 dscp;
	__u8 fragment;		/* TAM_FRAGMENT_* */
	__u16 mask;		/* in a rule's key: the index of its mask; in a packet's: 0 */
	__u16 hidden;		/* enum tam_hidden */
	__u8 source_mac[6];
	__u8 destination_mac[6];
	__be16 ethertype_be;	/* after the tags; TAM_ETHERTYPE_LENGTH of a frame with a length there */
	__u8 tcp_flags;		/* byte 13 of the TCP header, masked to the flags that rules match on */
	__u8 zero_end;
} __attribute__((aligned(8)));	/* masked and compared in words of 8 bytes */

/* L4 fields that a packet does not show. A router forwards it all the same, but a rule
 * that matches on them cannot tell whether it matches (find_hidden). */
enum tam_hidden {
	TAM_HIDDEN_NOTHING = 0,
	TAM_HIDDEN_FLAGS = 1,	/* TCP flags */
	TAM_HIDDEN_PORTS = 2,	/* L4 ports and TCP flags */
	TAM_HIDDEN_PROTOCOL = 3,	/* all of L4 */
};

#define TAM_VLAN_PRESENT 0x8000
#define TAM_VLAN_UNKNOWN 0x0001	/* in tam_meta.egress_vlan: tagged for a VLAN without a device on its port */
/* Pseudo ethertype of 802.3 frames with LLC (STP, IS-IS), whose ethertype field is a
 * length: as Linux's ETH_P_802_2. */
#define TAM_ETHERTYPE_LENGTH 0x0004

#define TAM_FRAGMENT_NONE 0
#define TAM_FRAGMENT_FIRST 1
#define TAM_FRAGMENT_LATER 2	/* later fragment: the L4 ports are the first one's, or 0 */

enum tam_action {
	TAM_ACTION_FORWARD = 0,	/* plain forwarding: the rule only counts */
	TAM_ACTION_DROP = 1,
	TAM_ACTION_USER = 2,	/* to the cell's socket on the arrival port and queue */
	TAM_ACTION_SERVICE = 3,	/* to the level of the entry's lane: below, or as TAM_ACTION_USER */
	TAM_ACTION_DOWN = 4,	/* drop: the service is down, and its failure policy is closed */
	TAM_ACTION_OUT = 5,	/* out by a port, without a module: its number in place of an entry's */
	TAM_ACTION_INTERCEPT = 6,	/* from a client, to a local listener: its port in place of an entry's */
	TAM_ACTION_INTERCEPT_BACK = 7,	/* back from the server, if such a connection exists */
	TAM_ACTION_INTERCEPT_CLOSED = 8,	/* as TAM_ACTION_INTERCEPT; dropped if there is no listener */
};

/* Value of a rule. */
struct tam_rule {
	__u32 rank;		/* position among all rules, best first: unique */
	__u32 rule;		/* the rule's number */
	__u16 session;
	__u16 entry;		/* the service's number in the cell */
	__u8 action;		/* enum tam_action */
	__u8 zero[3];
};

/* Stages that a packet passes: in each the best of its rules counts. */
enum tam_stage {
	TAM_STAGE_IN = 0,	/* infrastructure, before the principals */
	TAM_STAGE_SERVICE = 1,	/* one principal's */
	TAM_STAGE_OUT = 2,	/* infrastructure, after the principals */
	TAM_STAGES
};

/* Summary of a rule, by its number: for packets that come to it from the stage before. */
struct tam_rule_fact {
	__u16 session;
	__u16 entry;
	__u8 action;		/* enum tam_action; TAM_ACTION_FORWARD also when there is no such rule */
	__u8 zero[3];
};

/* Set of matched fields of one stage; masks are sorted by rank_best. Behind TAM_MASKS_MAX
 * of them lie those for packets with hidden fields: the other fields that rules with an
 * action match on. */
struct tam_mask {
	struct tam_key bits;
	__u64 salt;		/* start value of the filter's hash: different for each mask */
	__u32 rank_best;	/* the best rank among the rules of this mask; 0 is best of all */
	__u32 rest;		/* TAM_REST_*: groups of words of the bits that are not all zero */
	__u32 list;		/* not 0: the keys are the flows of tam_lists[list], which belong to `rule` */
	__u16 stage;		/* enum tam_stage */
	__u16 alone;		/* 1: all masks of the set are of this stage */
	struct tam_rule rule;
};
#define TAM_REST_UPPER (1 << 0)	/* more than the first 4 bytes of the addresses */
#define TAM_REST_LINK (1 << 1)	/* MACs, ethertype or TCP flags */

/* Packets and bytes of a rule, on one CPU. */
struct tam_rule_stats {
	__u64 packets;
	__u64 bytes;
};

/* Outcome of a packet that arrived by a port; each packet ends in exactly one. */
enum tam_outcome {
	TAM_FORWARDED = 0,		/* redirected to an egress port */
	TAM_BRIDGED,			/* sent out by the other end of the port's bridge */
	TAM_CUT_THROUGH,		/* sent out by the port that its rule names */
	TAM_TO_USER,			/* redirected to the cell's socket */
	TAM_TO_NIC,			/* given to a module in the driver: see the service's counters */
	TAM_TO_KERNEL_MODULE,		/* given to a module in the kernel's stack (tc): see the service's counters */
	TAM_INTERCEPTED,		/* to a local socket, of a stream service */
	/* Outcomes that end in the kernel's stack, with the reason. */
	TAM_KERNEL_NOT_IP,		/* ARP, LLDP, STP and other ethertypes */
	TAM_KERNEL_NOT_FOR_US,		/* the destination MAC is not this port's */
	TAM_KERNEL_LINK_LOCAL,		/* IPv6 neighbour discovery; except on bridges link-local addresses: no rule applies */
	TAM_KERNEL_LOCAL,		/* the route ends here, or there is none */
	TAM_KERNEL_NEIGHBOUR,		/* the neighbour is not resolved yet */
	TAM_KERNEL_TTL,			/* TTL or hop limit ran out: the kernel answers */
	TAM_KERNEL_TOO_BIG,		/* does not fit the egress MTU: the kernel answers */
	TAM_KERNEL_OPTIONS,		/* IPv4 options or a hop-by-hop header */
	TAM_KERNEL_EGRESS,		/* the egress device is no port of this node */
	TAM_KERNEL_SLOW,		/* the kernel would do more than route: see the port's slow reasons */
	TAM_KERNEL_SOURCE,		/* the source address is one that the kernel must judge */
	TAM_KERNEL_VLAN_DEPTH,		/* more VLAN tags than the front door handles */
	TAM_KERNEL_NO_SOCKET,		/* the rule's cell is gone: forwarded plainly */
	TAM_KERNEL_PARTIAL,		/* the sender left the L4 checksum to its device: only the kernel knows */
	TAM_KERNEL_OTHER,		/* FIB answers that only the kernel can act on */
	/* Outcomes that end in a drop, with the reason. */
	TAM_DROP_TRUNCATED,		/* a header is cut off by the end of the frame */
	TAM_DROP_IP_VERSION,		/* the version in the header is not the ethertype's */
	TAM_DROP_HEADER_LENGTH,		/* IPv4 header length below 20 */
	TAM_DROP_TOTAL_LENGTH,		/* IP length beyond the frame or below its header */
	TAM_DROP_CHECKSUM,		/* IPv4 header checksum is wrong */
	TAM_DROP_L4_HIDDEN,		/* a rule needs fields that the packet does not show: enum tam_hidden */
	TAM_DROP_RULE,			/* by a rule's action */
	TAM_DROP_ADJUST,		/* no space to change the frame's head */
	TAM_DROP_EGRESS_GONE,		/* the egress port went away meanwhile */
	TAM_DROP_LANE,			/* another CPU did not leave the service's lane in time, or the lane was held */
	TAM_DROP_TOO_LONG,		/* too long for the other end of the bridge, or the port that its rule names */
	TAM_DROP_DOWN,			/* its service is down, and its failure policy is closed */
	TAM_DROP_QUEUE,			/* its session's queue was full */
	TAM_DROP_SHARE,			/* its session's share of the port that its rule names was used up */
	TAM_DROP_CYCLE,			/* circled between cabled ports */
	TAM_DROP_OWN_SOURCE,		/* its source is an address of this machine */
	TAM_DROP_VLAN_DEPTH,		/* there are rules, and the protocol lies behind too many VLAN tags */
	TAM_OUTCOMES
};

#define TAM_VLAN_TAGS_MAX 2	/* most tags that the front door parses */
#define TAM_EXTENSIONS_MAX 8	/* most IPv6 extension headers that it parses */

/* Counters of one port, on one CPU: rx is the sum of the outcomes. */
struct tam_port_stats {
	__u64 rx_packets;
	__u64 rx_bytes;
	__u64 outcomes[TAM_OUTCOMES];
	__u64 cache_hits;	/* packets whose rule and route came from the flow cache */
};

/* Kernel features that would affect a packet beyond routing (tam_port_config.slow). */
#define TAM_SLOW_NETFILTER (1 << 0)	/* netfilter hooks are registered */
#define TAM_SLOW_IPSEC (1 << 1)		/* IPsec policies exist */
#define TAM_SLOW_RULES (1 << 2)		/* routing rules beside the three standard ones */
#define TAM_SLOW_QDISC (1 << 3)		/* a queueing discipline other than the default on a port */
#define TAM_SLOW_OPERATOR (1 << 4)	/* fast_path = "never" */
#define TAM_SLOW_NO_REDIRECT (1 << 5)	/* the device takes no redirected frames; counts for egress only */

#define TAM_RPF_NONE 0
#define TAM_RPF_STRICT 1	/* the route to the source must lead through the arrival port */
#define TAM_RPF_LOOSE 2		/* a route to the source must exist */

#define TAM_PORT_RAW (1 << 0)	/* IP packets without an Ethernet header (tun.h) */
#define TAM_PORT_GENERIC (1 << 1)	/* XDP in the stack: tc may see its packets without their Ethernet header */
#define TAM_PORT_CABLED (1 << 2)	/* frames that leave by it can arrive at a port of the same node (cycle.h) */
#define TAM_PORT_SHARES (1 << 3)	/* sessions have shares of its rate (share.h) */
#define TAM_PORT_ACCEPTS_OWN (1 << 6)	/* IPv4 packets from this machine's own addresses may arrive by it */
#define TAM_PORT_NO_V6 (1 << 7)	/* the kernel forwards no IPv6 that arrives by it */
#define TAM_PORT_TC (1 << 4)	/* the front door is at tc: services of streams only (tc_door.bpf.c) */
#define TAM_PORT_PACKET (1 << 5)	/* frames arrive by a packet socket of the cell; the kernel routes to it */

/* Configuration of a port, indexed by its number. */
struct tam_port_config {
	__u32 ifindex;		/* 0: no such port */
	__u32 slow;		/* TAM_SLOW_*: 0 lets plain forwarding take the fast path */
	__u8 mac[6];
	__u8 rpf;		/* TAM_RPF_* */
	__u8 flags;		/* TAM_PORT_* */
	__u32 mtu;		/* L3 MTU of the device */
	__u32 bridge;		/* 1 + the number of the port at the other end of its bridge, or 0 */
};

/* State that the daemon gives the front door; one for the node. */
struct tam_config {
	/* Generation of the rule set and the routes; bit 0 is the index of
	 * the active rule set. Every change makes a new one, and with that
	 * empties the flow cache. Its upper bits name fields that the active rules match on
	 * and most rule sets do not: a packet reads this word once, and sees a single state.
	 *
	 *  63           56        55             54                          1    0
	 * +---------------+----------------+-----------------------------------+-----+
	 * | TCP flags     | ethertypes     | counter                           | set |
	 * +---------------+----------------+-----------------------------------+-----+ */
	__u64 generation;
	/* Jiffies of the last heartbeat of the daemon, which is notified of route
	 * changes. Cached routes are good for TAM_ROUTES_LEASE from then; a node without
	 * its daemon asks the FIB for every packet. */
	__u64 routes_heard;
	__u32 mask_count[2];	/* masks of each rule set */
	__u32 hidden_count[2];	/* masks for packets with hidden fields, behind those: tam_mask */
	__u32 tick_ns;		/* nanoseconds of a jiffy */
	__u32 shares;		/* not 0: sessions have shares of some port's rate (share.h) */
	/* Jiffy of the first heartbeat, and the coarse clock then: the time of modules is
	 * extrapolated from there. */
	__u64 clock_jiffies;
	__u64 clock_ms;
	/* Interface index of the TAP device by which packets go from tc to the cell, each
	 * with its tam_meta as the first bytes of the frame; 0: there is none. */
	__u32 up_ifindex;
	__u32 kernel_ifindex;	/* device by which the cell gives packets to the kernel, or 0 */
	/* Secret factors of the hash over keys, drawn when the node starts. */
	__u64 hash_keys[TAM_HASH_KEYS];
};
#define TAM_GENERATION_FLAGS 56			/* position of the TCP flags that rules match on */
#define TAM_GENERATION_ETHERTYPES (1ULL << 55)	/* a rule names an ethertype */

/* VLAN device on top of a port. Keyed in both directions: (port ifindex, VLAN identifier)
 * -> L3 device, and (L3 ifindex, TAM_VLAN_UP) -> port. */
struct tam_vlan_key {
	__u32 ifindex;
	__u32 vlan;		/* VLAN identifier, or TAM_VLAN_UP */
};
#define TAM_VLAN_UP 0xffffffff
struct tam_vlan {
	__u32 ifindex;
	__u16 vlan;
	__u8 rpf;		/* TAM_RPF_* of packets that arrive by the VLAN device */
	__u8 flags;		/* TAM_PORT_NO_V6, TAM_PORT_ACCEPTS_OWN */
};

/* IPv4 addresses that the kernel delivers to this machine, from its table `local`. */
struct tam_own_prefix {
	__u32 length;		/* prefix length in bits */
	__be32 address_be;
};

/* Metadata that travels with a packet to the cell, directly in front of the frame.
 *
 *  0       4       6       8       10      12          18      20      22      24      28      32
 * +-------+-------+-------+-------+-------+-----------+-------+-------+-------+-------+-------+
 * | rule, | then  | entry |egress |egress | next hop  |arrival| L3    | L4    | flow  |flags  |
 * | then  |       |       | port  | VLAN  | MAC       |port   |offset |offset | hash  |       |
 * +-------+-------+-------+-------+-------+-----------+-------+-------+-------+-------+-------+
 *
 */
struct tam_meta {
	__u16 rule;		/* rule whose service gets it, or TAM_RULE_NONE */
	__u16 then[2];		/* rules of the later stages, or TAM_RULE_NONE: tam_rule_fact */
	__u16 entry;
	__u16 egress_port;	/* egress port's number, with TAM_META_ROUTED; or TAM_ORIGIN_BELOW */
	__u16 egress_vlan;	/* TAM_VLAN_PRESENT | identifier, or 0; without a route TAM_VLAN_UNKNOWN or 0 */
	__u8 next_hop[6];
	__u16 arrival_port;
	__u16 l3_offset;
	__u16 l4_offset;	/* TAM_OFFSET_NONE when there is none */
	__u32 flow_hash;	/* equal for both directions */
	__u32 flags;		/* TAM_META_*, IP version in bits 8..15, protocol in bits 16..23,
				 * TAM_ACTION_SERVICE: the lane's epoch in bits 24..31; on the
				 * way to tc its tc_epoch */
};
#define TAM_OFFSET_NONE 0xffff
#define TAM_ORIGIN_BELOW 0xfffe	/* no port: next_hop is the original IPv4 source, address and port, of a packet that a module has seen */
#define TAM_RULE_NONE 0xffff

/* Metadata of a packet that has passed a module already. */
struct tam_marked {
	__u64 mark[2];		/* mark of that module for the next */
	struct tam_meta meta;	/* with TAM_META_MARK */
};
#define TAM_META_ROUTED (1 << 0)	/* egress and next hop are resolved; else the kernel routes it */
#define TAM_META_FRAGMENT (1 << 1)
#define TAM_META_LATER_FRAGMENT (1 << 2)
/* Flags on the way from XDP to tc only. */
#define TAM_META_TO_TC (1 << 3)	/* the packet belongs to a lane */
#define TAM_META_UP (1 << 4)	/* the module cannot run there, since the stack shows the packet differently */
#define TAM_META_MARK (1 << 5)	/* the mark of the module before lies in front of this */
#define TAM_META_BRIDGED (1 << 6)	/* egress_port is the other end of a bridge: sent out by it unchanged */
#define TAM_META_CROSS (1 << 7)	/* from XDP to tc: only to be sent across (bridge.h) */
#define TAM_META_INTERCEPT (TAM_META_CROSS | TAM_META_UP)	/* from XDP to tc: mark it for the listener whose port is `entry` */
/* Flags on the way to the cell only. */
#define TAM_META_COUNTED (1 << 3)	/* holds credit of its session's queue (tam_queue_credits) */
#define TAM_META_COUNTED_SHIFT 4	/* position of the epoch's last bit, an index of `sent` */
#define TAM_META_LEAVES (1 << 7)	/* from tc: it only has to leave by egress_port, when it is its session's
				 * turn; flow_hash is the number of the tam_port_share that counts it, `then` the verdict,
				 * arrival_port the session that pays */
#define TAM_META_BY_KERNEL (1 << 0)	/* with TAM_META_LEAVES: the kernel is to route it then */
#define TAM_MARK_LISTENER 0x54410000	/* mark of a packet for a local listener; the lower half is its port */
#define TAM_META_EPOCH_SHIFT 24

enum tam_level {
	TAM_LEVEL_USER = 0,
	TAM_LEVEL_NIC = 1,
	TAM_LEVEL_KERNEL = 2,
};

/* Path of a lane's packets from XDP on. */
enum tam_path {
	TAM_PATH_DIRECT = 0,	/* the module at nic, or the cell's socket */
	TAM_PATH_TC = 1,	/* the stack, and at tc the module there, or the cell's TAP device */
};

/* Treatment of packets for a module that has used up its budget below user level. */
enum tam_over {
	TAM_OVER_NOT = 0,	/* the budget is not used up */
	TAM_OVER_DROP = 1,
	TAM_OVER_RAISE = 2,	/* to user level */
};

/* Lane of an entry: the one place where its packets meet its memory. Shared
 * with the cell, which maps it. Writers: D the front door (XDP and tc) while it
 * is in the lane (and, while the lane rests at user level, `sent up` without it),
 * C the cell, N the daemon.
 *
 *  0         8         16            24           28       32      36       40        44       48     52    56        60     64
 * +---------+---------+-------------+------------+--------+-------+--------+---------+--------+------+-----+---------+------+
 * | sent up | left    | epoch start | epoch seen | epoch  | level | target | program | window,| busy | cpu | trapped | ran  |
 * |    D    |    C    |      D      |     D      |   C    |   D   |   C, N |    N    | edges N|  D   |  D  |  D, N   | D, C |
 * +---------+---------+-------------+------------+--------+-------+--------+---------+--------+------+-----+---------+------+
 * | sent tc | left tc | tc awaited  | tc began                | path  | tc     | next, by edge    | closed, session | held, zero 128
 * |    D    |    D    |      D      |     D                   |   D   | epoch D|        N         |        N        |  N
 * +---------+---------+-------------+-------------------------+-------+--------+------------------+-----------------+---
 *
 * Paths of a packet, with the counters of their beginnings and ends:
 *
 *                        sent_up                          left
 *          ┌─ DIRECT ──────────────▶ socket ─▶ cell ──────▶
 *   XDP ───┤          └▶ module at nic                    left
 *          │ sent_tc          left_tc   sent_up ┌▶ TAP ─▶ cell ─▶
 *          └─ TC ──────▶ stack ───────▶ tc ─────┴▶ module at kernel
 *
 * The lane goes below at the first packet that finds `target` below and every packet
 * that was sent up gone: sent_up == left. It goes up at the first packet that finds
 * `target` above, and with each packet that a module raises.
 *
 * On the path TC all packets of the lane take that path, whatever `target` is: those that
 * may not be run at tc go up from there. The lane leaves the path at the first packet
 * that finds `target` elsewhere and nothing under way: sent_tc == left_tc,
 * nothing awaited, sent_up == left. It enters the path at the first packet that finds
 * `target` at kernel and every packet that was sent up gone, but never directly from nic,
 * whose redirected packets leave at the end of the driver's poll, later than
 * those of tc: at least one packet goes by the cell in between. So nothing
 * overtakes anything. `level` NIC implies DIRECT.
 *
 * At a packet rate above the capacity of user level, sent_up never equals left.
 * Then N holds the lane for a moment: packets that would go up are dropped, until it does.
 *
 * A packet that was sent up and never arrived (its ring was full) keeps the two
 * apart. Then the cell begins a new epoch, which packets carry from then on;
 * when every packet before that is certainly gone, `left` becomes
 * epoch_start + the packets of this epoch that have left.
 *
 * The same holds between XDP and tc (no memory for a packet's buffer, no entry into the lane):
 * XDP begins a new tc_epoch when it waits in vain to leave the path TC, or when
 * something has been under way for TAM_TC_PATIENCE jiffies.
 * Packets missing by then are `tc_awaited`; TAM_TC_PATIENCE jiffies later they are
 * certainly lost. */
struct tam_lane {
	__u64 sent_up;		/* packets given to user level */
	__u64 left;		/* packets that have left user level */
	__u64 epoch_start;	/* sent_up when epoch_seen began */
	__u32 epoch_seen;	/* epoch that packets carry now */
	__u32 epoch;		/* epoch that they must carry; 8 bits */
	__u32 level;		/* enum tam_level that packets go to */
	__u32 target;		/* enum tam_level that packets are to go to */
	__u32 program;		/* index in tam_modules, tam_modules_tc */
	__u16 window;		/* bytes of the packet's head that the module sees */
	__u8 edges;		/* bit n: edge n leads to an entry */
	__u8 over;		/* enum tam_over: state of the budget */
	__u32 busy;		/* 0: no CPU is in the lane, else 1 + its number */
	__u32 cpu;		/* the CPU that was in it last */
	__u32 trapped;		/* not 0: the module is not run; the cause, or TAM_NOT_A_VERDICT */
	__u32 ran;		/* 1 when it has run below; reset by the cell, in the lane */
	__u64 sent_tc;		/* packets given to the stack on their way to tc */
	__u64 left_tc;		/* packets that arrived there, or are lost */
	__u64 tc_awaited;	/* packets of the tc_epoch before that have not arrived */
	__u32 tc_began;		/* jiffies at which tc_epoch began, their low half */
	__u32 tc_drained;	/* jiffies when nothing was under way to tc for the last time, low half */
	__u32 path;		/* enum tam_path */
	__u32 tc_epoch;		/* epoch that packets to tc carry; 8 bits */
	__u16 next[TAM_EDGES_MAX];	/* the entry at the end of each edge, or TAM_NEXT_DOWN */
	__u32 closed;		/* not 0: packets are dropped while the service is down */
	__u32 session;		/* session that pays */
	__u32 held;		/* not 0: nothing more goes up until every packet that did has left */
	__u16 account;		/* index in tam_accounts, if `beyond` is not 0 */
	__u16 beyond;		/* enum tam_over for packets while that account is empty; 0: it has none */
};
#define TAM_NEXT_DOWN 0xffff	/* drop: the service there is down, and its failure policy is closed */


/* Jiffies (1 s at HZ=1000, 10 s at 100) after which a packet that has not arrived at tc
 * is lost. */
#define TAM_TC_PATIENCE 1000

#define TAM_NOT_A_VERDICT 0xfffffffe	/* in `trapped`: on_packet returned a value that is no verdict */
#define TAM_NOT_RUN 0xffffffff		/* in tam_hand_over.trapped: on_packet was not called */
#define TAM_OVER_BUDGET 0xfffffffd	/* in tam_hand_over.trapped: not called, for the budget is used up */
#define TAM_PROGRAM_NONE 0xffffffff	/* in tam_passage.program: call none */
#define TAM_PROGRAM_OVER 0xfffffffe	/* call none, for the budget is used up */

/* Arguments and result of a module's program: one for each entry, and so at
 * an address that the program has as a constant. Only the CPU in the
 * entry's lane reads or writes it. The first 64 bytes are the metadata of
 * docs/reference/module-abi.md, as the
 * module sees them; the result of the module's program follows. The compiler
 * (levels/wasm-to-bpf, layout.rs) has the same offsets.
 *
 *  0              64        68        72       76     80          88        96      128
 * +--------------+---------+---------+--------+------+-----------+---------+--------+
 * | ABI metadata | verdict | trapped | padded | zero | fuel used | charged | unused |
 * +--------------+---------+---------+--------+------+-----------+---------+--------+
 *
 */
struct tam_hand_over {
	__u32 packet_length;
	__u32 window_length;
	__u16 l3_offset;
	__u16 l4_offset;
	__u8 begins_with;
	__u8 ip_version;
	__u8 protocol;
	__u8 flags;
	__u16 port;
	__u16 session;
	__u32 rule;
	__u32 flow_hash;
	__u32 lane;
	__u64 now_ms;
	__u64 mark[2];
	__u64 level;		/* one byte: enum tam_level; the others are zero */
	__u32 verdict;		/* return value of on_packet, when `trapped` is 0 */
	__u32 trapped;		/* 0, a trap's code, or TAM_NOT_RUN */
	__u32 padded;
	__u32 zero;
	__u64 fuel_used;	/* by the entry's modules, sum over all packets */
	__u64 fuel_charged;	/* part of fuel_used that the lane's account has paid */
	__u64 unused[4];	/* pads to a cache line */
};

/* State of a packet between the first half of the front door and the second, in XDP and
 * at tc: one for each CPU, since the packet is still under way when another CPU is in the
 * lane. */
struct tam_passage {
	struct tam_meta meta;	/* the packet's route; travels with it when the module raises it */
	__u8 own_mac[6];	/* MAC of the egress port */
	__u16 moved;		/* not 0: another CPU was in the lane before */
	__u32 mtu;		/* of the route; at tc the length of the IP packet on arrival */
	__u32 length;		/* length of the frame on arrival */
	__u32 program;		/* index in tam_modules or tam_modules_tc, or TAM_PROGRAM_NONE */
	__u32 bytes;		/* length of the frame as the module got it */
	__u64 mark[2];		/* mark of the module before; with TAM_META_MARK it travels along */
	__u64 clock_jiffies;	/* jiffy of clock_ms */
	__u64 clock_ms;		/* time that was last computed */
	__u32 payer;		/* session whose share of a port is charged */
	__u32 kernel;		/* for a rule that names a port: 0, or the outcome as which the kernel gets the packet */
};

/* Counters of an entry below user level, on one CPU. `packets` is the sum of all from
 * `forwarded` to `drop_share`. */
struct tam_service_stats {
	__u64 packets;		/* given to the module's program, or brought to its lane and not run there */
	__u64 bytes;		/* of `packets`, on arrival */
	__u64 forwarded;
	__u64 to_kernel;
	__u64 bounced;
	__u64 redirected;
	__u64 passed_on;	/* to the next entry of the graph, which counts it, too */
	__u64 raised;		/* given to user level, by the module or from tc in its place */
	__u64 plain;		/* not run, or raised without a cell: as if there were no rule, unless it is closed */
	__u64 drop_module;	/* by the verdict */
	__u64 drop_trap;	/* the module trapped, or returned no verdict */
	__u64 drop_no_port;	/* no such port to redirect to */
	__u64 drop_too_long;	/* longer than that port takes */
	__u64 drop_malformed;	/* not forwardable as the module left it */
	__u64 drop_budget;	/* the budget was used up */
	__u64 drop_down;	/* not run, or raised without a cell, and the service is closed; or the next one is */
	__u64 drop_rule;	/* passed, and dropped by a rule of the next stage */
	__u64 drop_lane;	/* at tc, or behind another module: another CPU did not leave the lane in time */
	__u64 drop_cycle;	/* circled between cabled ports */
	__u64 drop_queue;	/* raised, and its session's queue was full */
	__u64 drop_share;	/* the session's share of the egress port was used up; at kernel: and the queue was full */
	__u64 handed_over;	/* packets that found the lane at another CPU than the last one */
	__u64 reasons_lost;	/* part of drop_module whose reason has no counter */
	__u64 raised_bytes;	/* of `raised`, on arrival */
	__u64 drop_budget_bytes; /* of `drop_budget` */
};

/* Token bucket of the fuel that services may use below user level: one for each session
 * with a reservation, by its number, and one for all without. In parts of a unit of fuel:
 * TAM_FUEL_SHIFT.
 *
 *   a packet in a lane:  left -= fuel of the packets before it (fuel_used - fuel_charged)
 *
 *   the first in a jiffy:  left += jiffies * per_tick, up to `full`
 *
 *   left <= 0:  the module is not run, by the lane's `beyond`
 *
 * Packets of several CPUs are in lanes of one account: `left` is only added to, and the
 * CPU that advances `ticked` fills it. The daemon writes the other two, and `left` at the
 * beginning. */
struct tam_account {
	__s64 left;
	__u64 ticked;		/* jiffy until which it is filled */
	__u64 per_tick;
	__u64 full;		/* most that it holds */
	__u64 sent[2];		/* of a port share: bytes that left directly from nic, and from kernel, */
	__u64 packets;		/* and their packets */
	__u64 unused;		/* pads to a cache line */
};
#define TAM_ACCOUNTS_MAX 16384	/* sessions of a node */

/* Share of a port (share.h): its account is in parts of a byte. Writers: F the front door, C the
 * cell, which maps it.
 *
 *  0         64      80        96     104       112          120    128
 * +---------+-------+---------+------+---------+------------+------+
 * | account | up[2] | dropped | gone | sent up | sent above | zero |
 * |  F, C   |   F   |    F    |  C   |    C    |      C     |      |
 * +---------+-------+---------+------+---------+------------+------+
 *
 * 	a packet of kernel goes to wait in the cell:        up[epoch] += 1
 * 	it has left, and the device has it:                 gone += 1
 * 	the cell queues a packet of user level there:       gone -= 1
 * 	number of packets that wait:                        up[0] + up[1] - gone
 *
 * The epoch is that of the queue credit which the packet takes, and lost packets are found as
 * there (tam_queue_credits). The first records, by the number of the port, are for all sessions that
 * have no share of it. */
struct tam_port_share {
	struct tam_account account;
	__u64 up[2];		/* packets of kernel level that went to wait, by the last bit of the epoch */
	__u64 dropped[2];	/* packets that found the share used up at nic; and at kernel the queue full */
	__u64 gone;
	__u64 sent_up;		/* bytes of packets that waited, and left */
	__u64 sent_above;	/* bytes of packets of user level that left */
	__u64 unused;		/* pads to two cache lines */
};
#define TAM_LINES_MAX (TAM_PORTS_MAX + 16384)
#define TAM_SESSION_SYSTEM 0	/* session of the node's own services */
#define TAM_ETHERNET_REST 24	/* overhead of each packet on an Ethernet: preamble, FCS, gap */
#define TAM_FUEL_SHIFT 16
#define TAM_FILL_MAX (1 << 14)	/* most jiffies that are filled at once: beyond, the sum could overflow */

/* End of a flow: IPv4 fills the first four bytes of the address. */
struct tam_end {
	__u8 address[16];
	__be16 port_be;		/* or an ICMP identifier; of a later fragment the IP identification */
	__u16 zero;
};

/* Trailer of the frames that the cell writes to its TAP device (ask.h). */
struct tam_request {
	__u32 number;
	__u16 port;		/* port that receives the packet; 0xffff: the node's own device */
	__u8 kind;		/* TAM_ASK_* */
	__u8 changed;		/* TAM_CHANGED_*, with TAM_ASK_NOTE: ends to record */
	struct tam_end source;	/* source with which it leaves */
	struct tam_end destination;	/* destination with which it arrived */
};
#define TAM_CHANGED_SOURCE 1
#define TAM_CHANGED_DESTINATION 2
#define TAM_ASK_EGRESS 0
#define TAM_ASK_NOTE 1
#define TAM_ASK_ARRIVE 2
#define TAM_ETHERTYPE_ASKED 0x88b5	/* IEEE 802 local experimental: the kernel reads nothing behind it */

/* Answer to the last request. */
struct tam_answer {
	__u64 value;		/* request's number << 32 | 1 + the number of a port, or 0: none */
	__u64 unused[7];	/* pads to a cache line */
};

#define TAM_HEAD_BYTES 66	/* Ethernet with a tag, IPv6 and UDP */
#define TAM_HEAD_NOT 0		/* no module watches the queue */
#define TAM_HEAD_WANTED 1	/* set by the cell: the next packet that is dropped leaves its head */
#define TAM_HEAD_TAKEN 2	/* set by the front door while it writes the head */
#define TAM_HEAD_THERE 3	/* set by the front door when the head is complete for the cell */

/* Queue credits of a session: the limit of its packets on their way to user level and there, in bytes
 * of packet memory. Sessions without a reservation are also counted in one more record, which all of
 * them share. Writers: F the front door, C the cell, which maps it.
 *
 *  0      8         16        24        32      36       40     64     72     128
 * +------+---------+---------+---------+-------+--------+------+------+------+
 * | most | sent[0] | sent[1] | dropped | epoch | shared | zero | done | zero |
 * |  C   |    F    |    F    |    F    |   C   |   C    |      |  C   |      |
 * +------+---------+---------+---------+-------+--------+------+------+------+
 *
 * 	a packet goes up:         sent[epoch] += its memory, if the queue is then at most `most`
 * 	the cell releases it:     done += its memory
 * 	the cell queues frames of its own, such as a module's:  done -= their memory
 * 	length of the queue:      sent[0] + sent[1] - done
 *
 * A packet that was sent up and never arrived (its socket was closed, its device failed) would keep
 * its credit for ever. So the cell switches the counting to another epoch each second, for all
 * sessions at once; a second later packets of the epoch before that have not arrived are lost, and
 * done is raised by their memory. If some arrive after all, the next sum of that epoch lacks them. */
struct tam_queue_credits {
	__u64 most;		/* limit of the queue; 0: nothing is counted, there are no claims */
	__u64 sent[2];		/* memory of packets given to user level, by the last bit of the epoch */
	__u64 dropped;		/* packets dropped for lack of credit */
	__u32 epoch;
	__u32 shared;		/* not 0: no reservation, so tam_rooms[TAM_ROOM_SHARED] counts, too */
	__u64 unused[3];
	__u64 done;		/* in a cache line of its own: the front door reads it, and writes the others */
	__u64 unused_done[7];
	__u32 head_state;	/* TAM_HEAD_*: for a module that watches the queue, */
	__u16 head_length;
	__u8 head[TAM_HEAD_BYTES];	/* beginning of a packet that was dropped for lack of credit */
	__u8 unused_end[56];
};
#define TAM_ROOMS_MAX 16385	/* sessions of a node, and the shared record */
#define TAM_ROOM_SHARED 16384
#define TAM_FRAME_MEMORY 4096	/* bytes of one frame of packet memory, */
#define TAM_FRAME_BYTES 3840	/* and the bytes of a packet that it holds */

/* Reasons of the kernel's stack for drops of packets that the node has left to it
 * (stack.h): the kernel's enum skb_drop_reason, whose names are in its BTF. Linux 6.18
 * has 128. */
#define TAM_STACK_REASONS_MAX 256
#define TAM_STACK_OTHER (TAM_STACK_REASONS_MAX - 1)	/* all further reasons */
#define TAM_STACK_OWN TAM_PORTS_MAX	/* in place of a port's number: packets that the cell gave to the kernel */
#define TAM_STACK_ARRIVALS (TAM_PORTS_MAX + 1)
#define TAM_MARK_ENDED 0x54420000	/* mark of a packet that a program of the node drops at tc */

/* Kind of a reason: its meaning for a packet, and other counters of it. */
enum tam_stack_kind {
	TAM_STACK_NOT = 0,	/* no drop, a copy, or a drop by the front door (XDP) */
	TAM_STACK_DROP = 1,
	TAM_STACK_AT_DEVICE = 2,	/* the arrival device counts it, too */
	TAM_STACK_AT_TC = 3,	/* dropped by a program at tc: those of the node mark and count theirs */
	TAM_STACK_BY_DEVICE = 4,	/* counted by the device if the packet was being sent */
	TAM_STACK_NETFILTER = 5,	/* at a packet port netfilter also takes from the kernel the frames that the cell has */
	TAM_STACK_UNSPECIFIED = 6,	/* as TAM_STACK_BY_DEVICE; IPv6 multicast is no drop */
	TAM_STACK_NO_SOCKET = 7,	/* an ICMP echo reply is no drop */
};

/* Counters of the kernel's drops of packets that arrived by one port, on one CPU. */
struct tam_stack_stats {
	__u64 device;		/* buffers that the arrival device counts as dropped, too */
	__u64 reasons[TAM_STACK_REASONS_MAX];	/* frames */
};

struct tam_reason_key {
	__u16 entry;
	__u16 reason;
};

#endif
