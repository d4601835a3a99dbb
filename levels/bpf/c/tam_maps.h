/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Keys and values shared between the front door and the daemon.
 * The Rust half is base/bpf-maps; a test there compares every size and offset.
 * Numbers are host-endian unless they end in _be. */
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
#define TAM_FLOW_WAYS 8		/* flows of one set of the large cache; their tags are one word */
#define TAM_FLOWS_LISTED_MAX (1 << 20)	/* flows of all lists of one node */
#define TAM_LISTS_MAX (2 * TAM_MASKS_MAX + 1)	/* lists of both rule sets: each is a mask; 0 is none */
#define TAM_HASH_KEYS 16	/* one for each 4 bytes of a key */
#define TAM_FLOWS_MAX 8192	/* flow cache entries on each CPU, a power of two */
#define TAM_ROUTES_LEASE 1000	/* jiffies: 1 s at HZ=1000, 4 s at 250, 10 s at 100 */
#define TAM_VLANS_MAX 4096	/* VLAN devices above the ports */
#define TAM_FRAGMENTS_MAX 4096	/* datagrams whose later fragments are awaited */
#define TAM_OWN_MAX 65536	/* prefixes of IPv4 addresses that are this machine's own */
#define TAM_ENTRIES_MAX 16384	/* entries of one node: each has a lane */
#define TAM_MODULES_MAX 4096	/* entries that can be below user level, the first ones: each has counters there */
#define TAM_EDGES_MAX 4		/* edges out of one entry */
#define TAM_REASONS_MAX 4096	/* pairs of entry and drop reason that are counted apart */
#define TAM_CYCLES_MAX 4096	/* counters of rounds: frames that share one are told apart by nothing */
#define TAM_CYCLE_ROUNDS 64	/* rounds between cabled ports: for each new frame, and each heartbeat */
#define TAM_CYCLE_ROUNDS_MAX (1 << 16)	/* rounds that frames which look alike can have together */

/* What a packet is matched by; one that a rule does not match by is zero in
 * the rule's mask. IPv4 addresses fill the first four bytes. Of a frame that is
 * not IP all is zero but VLAN, arrival port, MACs and ethertype.
 *
 *  0               16              32    34    36    37    38    40    42  43   44    46    48
 * +---------------+---------------+-----+-----+-----+-----+-----+-----+---+----+-----+-----+
 * | source        | destination   |sport|dport|proto|ipver|vlan |port |dsc|frag|mask |hidd.|
 * +---------------+---------------+-----+-----+-----+-----+-----+-----+---+----+-----+-----+
 * | source MAC | destination MAC | ethertype | TCP flags | zero |
 * +------------+-----------------+-----------+-----------+------+
 *  48           54                60          62          63     64
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
	__be16 ethertype_be;	/* behind the tags; TAM_ETHERTYPE_LENGTH of a frame with a length there */
	__u8 tcp_flags;		/* byte 13 of the TCP header, as far as a rule looks at it */
	__u8 zero_end;
} __attribute__((aligned(8)));	/* masked and compared in words of 8 bytes */

/* What of L4 a packet does not show. A router forwards it all the same, but rules that look at it
 * do not know whether it is theirs (find_hidden). */
enum tam_hidden {
	TAM_HIDDEN_NOTHING = 0,
	TAM_HIDDEN_FLAGS = 1,	/* TCP flags */
	TAM_HIDDEN_PORTS = 2,	/* L4 ports and TCP flags */
	TAM_HIDDEN_PROTOCOL = 3,	/* all of L4 */
};

#define TAM_VLAN_PRESENT 0x8000
#define TAM_VLAN_UNKNOWN 0x0001	/* in tam_meta.egress_vlan: tagged for a VLAN that its port does not have */
/* Of 802.3 frames with LLC (STP, IS-IS), whose ethertype field is a length: as Linux's ETH_P_802_2. */
#define TAM_ETHERTYPE_LENGTH 0x0004

#define TAM_FRAGMENT_NONE 0
#define TAM_FRAGMENT_FIRST 1
#define TAM_FRAGMENT_LATER 2	/* not the first: the L4 ports are the first one's, or 0 */

enum tam_action {
	TAM_ACTION_FORWARD = 0,	/* plain forwarding: the rule only counts */
	TAM_ACTION_DROP = 1,
	TAM_ACTION_USER = 2,	/* to the cell's socket on the arrival port and queue */
	TAM_ACTION_SERVICE = 3,	/* to where the entry's lane is: below, or as TAM_ACTION_USER */
	TAM_ACTION_DOWN = 4,	/* drop: the service is down, and its failure policy is closed */
	TAM_ACTION_OUT = 5,	/* out by a port, without a module: its number is where an entry's is */
	TAM_ACTION_INTERCEPT = 6,	/* from a client, to a listener here: its port is where an entry's is */
	TAM_ACTION_INTERCEPT_BACK = 7,	/* what comes back from the server, if such a connection is there */
	TAM_ACTION_INTERCEPT_CLOSED = 8,	/* as TAM_ACTION_INTERCEPT; what the listener cannot have is dropped */
};

/* What a rule says. */
struct tam_rule {
	__u32 rank;		/* position among all rules, best first: unique */
	__u32 rule;		/* the rule's number */
	__u16 session;
	__u16 entry;		/* the service's number in the cell */
	__u8 action;		/* enum tam_action */
	__u8 zero[3];
};

/* The stages that a packet goes through: in each the best of its rules counts. */
enum tam_stage {
	TAM_STAGE_IN = 0,	/* infrastructure, before the principals */
	TAM_STAGE_SERVICE = 1,	/* one principal's */
	TAM_STAGE_OUT = 2,	/* infrastructure, behind them */
	TAM_STAGES
};

/* What a rule says, by its number: for packets that come to it from the stage before. */
struct tam_rule_fact {
	__u16 session;
	__u16 entry;
	__u8 action;		/* enum tam_action; TAM_ACTION_FORWARD also when there is no such rule */
	__u8 zero[3];
};

/* One set of matched fields of one stage; masks are sorted by rank_best. Behind TAM_MASKS_MAX of
 * them lie those of hidden packets: what rules that do more than count match by beside the
 * fields that such a packet does not show. */
struct tam_mask {
	struct tam_key bits;
	__u64 salt;		/* what the filter's hash begins with: another one for each mask */
	__u32 rank_best;	/* the best rank among the rules of this mask; 0 is best of all */
	__u32 rest;		/* TAM_REST_*: which words of the bits are not all zero */
	__u32 list;		/* not 0: the keys are the flows of tam_lists[list], all of them rule's */
	__u16 stage;		/* enum tam_stage */
	__u16 alone;		/* 1: all masks of the set are of this stage */
	struct tam_rule rule;
};
#define TAM_REST_UPPER (1 << 0)	/* of the addresses more than the first 4 bytes */
#define TAM_REST_LINK (1 << 1)	/* MACs, ethertype or TCP flags */

/* Packets and bytes of a rule, on one CPU. */
struct tam_rule_stats {
	__u64 packets;
	__u64 bytes;
};

/* Where a packet that came in by a port ended; each packet ends in exactly one. */
enum tam_outcome {
	TAM_FORWARDED = 0,		/* redirected to an egress port */
	TAM_BRIDGED,			/* sent out by the other end of the port's bridge */
	TAM_CUT_THROUGH,		/* sent out by the port that its rule names */
	TAM_TO_USER,			/* redirected to the cell's socket */
	TAM_TO_NIC,			/* given to a module in the driver: see the service's counters */
	TAM_TO_KERNEL_MODULE,		/* given to a module in the kernel's stack (tc): as above */
	TAM_INTERCEPTED,		/* to a socket here, of a stream service */
	/* To the kernel's stack, because ... */
	TAM_KERNEL_NOT_IP,		/* ARP, LLDP, STP and other ethertypes */
	TAM_KERNEL_NOT_FOR_US,		/* the destination MAC is not this port's */
	TAM_KERNEL_LINK_LOCAL,		/* IPv6 neighbour discovery; but for bridges link-local addresses: never a rule's */
	TAM_KERNEL_LOCAL,		/* the route ends here, or there is none */
	TAM_KERNEL_NEIGHBOUR,		/* the neighbour is not resolved yet */
	TAM_KERNEL_TTL,			/* TTL or hop limit ran out: the kernel answers */
	TAM_KERNEL_TOO_BIG,		/* does not fit the egress MTU: the kernel answers */
	TAM_KERNEL_OPTIONS,		/* IPv4 options or a hop-by-hop header */
	TAM_KERNEL_EGRESS,		/* the egress device is no port of this node */
	TAM_KERNEL_SLOW,		/* the kernel would add something: see the port's slow reasons */
	TAM_KERNEL_SOURCE,		/* the source address is one that the kernel must judge */
	TAM_KERNEL_VLAN_DEPTH,		/* more VLAN tags than the front door handles */
	TAM_KERNEL_NO_SOCKET,		/* the rule's cell is not there: forwarded plainly */
	TAM_KERNEL_PARTIAL,		/* the sender left the L4 checksum to its device: only the kernel knows */
	TAM_KERNEL_OTHER,		/* FIB answers that only the kernel can act on */
	/* Dropped, because ... */
	TAM_DROP_TRUNCATED,		/* a header is cut off by the end of the frame */
	TAM_DROP_IP_VERSION,		/* the version in the header is not the ethertype's */
	TAM_DROP_HEADER_LENGTH,		/* IPv4 header length below 20 */
	TAM_DROP_TOTAL_LENGTH,		/* IP length beyond the frame or below its header */
	TAM_DROP_CHECKSUM,		/* IPv4 header checksum is wrong */
	TAM_DROP_L4_HIDDEN,		/* a rule needs what the packet does not show: enum tam_hidden */
	TAM_DROP_RULE,			/* a rule says so */
	TAM_DROP_ADJUST,		/* no room to change the frame's head */
	TAM_DROP_EGRESS_GONE,		/* the egress port left while the packet was on its way */
	TAM_DROP_LANE,			/* another CPU did not leave the service's lane in time, or it was held */
	TAM_DROP_TOO_LONG,		/* longer than the other end of the bridge takes, or the port that its rule names */
	TAM_DROP_DOWN,			/* its service is down, and drops what it does not see */
	TAM_DROP_QUEUE,			/* its session's queue had no room for it */
	TAM_DROP_SHARE,			/* nothing was left of its session's share of the port that its rule names */
	TAM_DROP_CYCLE,			/* it went round and round between cabled ports */
	TAM_DROP_OWN_SOURCE,		/* its source is an address of this machine */
	TAM_DROP_VLAN_DEPTH,		/* there are rules, and what it is lies behind too many VLAN tags */
	TAM_OUTCOMES
};

#define TAM_VLAN_TAGS_MAX 2	/* tags that the front door looks behind */
#define TAM_EXTENSIONS_MAX 8	/* IPv6 extension headers that it looks behind */

/* Counters of one port, on one CPU: rx is the sum of the outcomes. */
struct tam_port_stats {
	__u64 rx_packets;
	__u64 rx_bytes;
	__u64 outcomes[TAM_OUTCOMES];
	__u64 cache_hits;	/* packets whose rule and route came from the flow cache */
};

/* Reasons why the kernel would add something to a packet (tam_port_config.slow). */
#define TAM_SLOW_NETFILTER (1 << 0)	/* netfilter hooks are registered */
#define TAM_SLOW_IPSEC (1 << 1)		/* IPsec policies exist */
#define TAM_SLOW_RULES (1 << 2)		/* routing rules beside the three standard ones */
#define TAM_SLOW_QDISC (1 << 3)		/* a queueing discipline other than the default on a port */
#define TAM_SLOW_OPERATOR (1 << 4)	/* fast_path = "never" */
#define TAM_SLOW_NO_REDIRECT (1 << 5)	/* the device takes no redirected frames; counts on the way out only */

#define TAM_RPF_NONE 0
#define TAM_RPF_STRICT 1	/* the way back to the source leads through the arrival port */
#define TAM_RPF_LOOSE 2		/* there is a way back to the source */

#define TAM_PORT_RAW (1 << 0)	/* IP packets without an Ethernet header (tun.h) */
#define TAM_PORT_GENERIC (1 << 1)	/* XDP in the stack: tc may see its packets without their Ethernet header */
#define TAM_PORT_CABLED (1 << 2)	/* what leaves by it can come in by a port of the same node (cycle.h) */
#define TAM_PORT_SHARES (1 << 3)	/* sessions have shares of its rate (share.h) */
#define TAM_PORT_ACCEPTS_OWN (1 << 6)	/* IPv4 packets from this machine's own addresses may come in by it */
#define TAM_PORT_NO_V6 (1 << 7)	/* the kernel forwards no IPv6 that comes in by it */
#define TAM_PORT_TC (1 << 4)	/* the front door is at tc: services of streams only (tc_door.bpf.c) */
#define TAM_PORT_PACKET (1 << 5)	/* frames come in by a packet socket of the cell; the kernel routes to it */

/* One port, indexed by its number. */
struct tam_port_config {
	__u32 ifindex;		/* 0: no such port */
	__u32 slow;		/* TAM_SLOW_*: 0 lets plain forwarding take the fast path */
	__u8 mac[6];
	__u8 rpf;		/* TAM_RPF_* */
	__u8 flags;		/* TAM_PORT_* */
	__u32 mtu;		/* L3 MTU of the device */
	__u32 bridge;		/* 1 + the number of the port at the other end of its bridge, or 0 */
};

/* What the daemon tells the front door; one for the node. */
struct tam_config {
	/* The rule set and the routes have this generation; bit 0 is the index of
	 * the active rule set. Every change makes it another one, and with that
	 * empties the flow cache. Its upper bits say what the active rules look at
	 * that most do not: a packet reads this word once, and has all of one state.
	 *
	 *  63           56        55             54                          1    0
	 * +---------------+----------------+-----------------------------------+-----+
	 * | TCP flags     | ethertypes     | counter                           | set |
	 * +---------------+----------------+-----------------------------------+-----+ */
	__u64 generation;
	/* The jiffies at which the daemon, which hears of route changes, last said
	 * that it listens. Cached routes are good for TAM_ROUTES_LEASE from then; a
	 * node without its daemon asks the FIB for every packet. */
	__u64 routes_heard;
	__u32 mask_count[2];	/* masks of each rule set */
	__u32 hidden_count[2];	/* those behind them: tam_mask */
	__u32 tick_ns;		/* nanoseconds of a jiffy */
	__u32 shares;		/* not 0: sessions have shares of some port's rate (share.h) */
	/* The first heartbeat's jiffy, and the coarse clock then: the time of modules
	 * is counted on from there. */
	__u64 clock_jiffies;
	__u64 clock_ms;
	/* The TAP device by which packets go from tc to the cell, each with its
	 * tam_meta as the first bytes of the frame; 0: they cannot. */
	__u32 up_ifindex;
	__u32 kernel_ifindex;	/* the device by which the cell gives packets to the kernel, or 0 */
	/* Factors of the hash over keys, drawn when the node starts and known to nobody. */
	__u64 hash_keys[TAM_HASH_KEYS];
};
#define TAM_GENERATION_FLAGS 56			/* where the TCP flags begin that rules look at */
#define TAM_GENERATION_ETHERTYPES (1ULL << 55)	/* a rule names an ethertype */

/* A VLAN device above a port. Keyed both ways:
 * (port ifindex, VLAN identifier) -> L3 device, and (L3 ifindex, TAM_VLAN_UP) -> port. */
struct tam_vlan_key {
	__u32 ifindex;
	__u32 vlan;		/* VLAN identifier, or TAM_VLAN_UP */
};
#define TAM_VLAN_UP 0xffffffff
struct tam_vlan {
	__u32 ifindex;
	__u16 vlan;
	__u8 rpf;		/* TAM_RPF_* of what comes in by the VLAN device */
	__u8 flags;		/* TAM_PORT_NO_V6, TAM_PORT_ACCEPTS_OWN */
};

/* IPv4 addresses that the kernel delivers to this machine: its table `local` has them. */
struct tam_own_prefix {
	__u32 length;		/* bits that count */
	__be32 address_be;
};

/* What travels with a packet to the cell, directly in front of the frame.
 *
 *  0       4       6       8       10      12          18      20      22      24      28      32
 * +-------+-------+-------+-------+-------+-----------+-------+-------+-------+-------+-------+
 * | rule, | then  | entry |egress |egress | next hop  |arrival| L3    | L4    | flow  |flags  |
 * | then  |       |       | port  | VLAN  | MAC       |port   |offset |offset | hash  |       |
 * +-------+-------+-------+-------+-------+-----------+-------+-------+-------+-------+-------+
 */
struct tam_meta {
	__u16 rule;		/* whose service has it, or TAM_RULE_NONE */
	__u16 then[2];		/* the rules of the stages behind that, or TAM_RULE_NONE: tam_rule_fact */
	__u16 entry;
	__u16 egress_port;	/* its number, when TAM_META_ROUTED; or TAM_ORIGIN_BELOW */
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
#define TAM_ORIGIN_BELOW 0xfffe	/* no port: next_hop is the IPv4 source with which it came to a module, address and port */
#define TAM_RULE_NONE 0xffff

/* Metadata of a packet that was with a module already. */
struct tam_marked {
	__u64 mark[2];		/* what that module left for the next */
	struct tam_meta meta;	/* with TAM_META_MARK */
};
#define TAM_META_ROUTED (1 << 0)	/* egress and next hop are resolved; else the kernel routes it */
#define TAM_META_FRAGMENT (1 << 1)
#define TAM_META_LATER_FRAGMENT (1 << 2)
/* On the way from XDP to tc, and nowhere else: */
#define TAM_META_TO_TC (1 << 3)	/* the packet is a lane's */
#define TAM_META_UP (1 << 4)	/* it cannot be run there, for the stack shows it otherwise than it came */
#define TAM_META_MARK (1 << 5)	/* the mark of the module before lies in front of this */
#define TAM_META_BRIDGED (1 << 6)	/* egress_port is the other end of a bridge: out by it, as it is */
#define TAM_META_CROSS (1 << 7)	/* from XDP to tc: nothing but that (bridge.h) */
#define TAM_META_INTERCEPT (TAM_META_CROSS | TAM_META_UP)	/* from XDP to tc: mark it for the listener that `entry` is the port of */
/* On the way to the cell, and nowhere else: */
#define TAM_META_COUNTED (1 << 3)	/* it has room in its session's queue (tam_room) */
#define TAM_META_COUNTED_SHIFT 4	/* in `sent` of which epoch */
#define TAM_META_LEAVES (1 << 7)	/* from tc: it only has to leave by egress_port, when it is its session's
				 * turn; flow_hash is the number of the tam_line that counts it, `then` the verdict,
				 * arrival_port the session that pays */
#define TAM_META_BY_KERNEL (1 << 0)	/* with TAM_META_LEAVES: the kernel is to route it then */
#define TAM_MARK_LISTENER 0x54410000	/* of a packet for a listener here; the lower half is its port */
#define TAM_META_EPOCH_SHIFT 24

enum tam_level {
	TAM_LEVEL_USER = 0,
	TAM_LEVEL_NIC = 1,
	TAM_LEVEL_KERNEL = 2,
};

/* The way of a lane's packets from XDP on. */
enum tam_path {
	TAM_PATH_DIRECT = 0,	/* the module at nic, or the cell's socket */
	TAM_PATH_TC = 1,	/* the stack, and at tc the module there, or the cell's TAP device */
};

/* What becomes of packets for a module that has used up its budget below user level. */
enum tam_over {
	TAM_OVER_NOT = 0,	/* it has not */
	TAM_OVER_DROP = 1,
	TAM_OVER_RAISE = 2,	/* to user level */
};

/* The lane of an entry: the one place where its packets meet its memory. Shared
 * with the cell, which maps it. Who writes: D the front door (XDP and tc) while it
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
 * The ways of a packet, and what counts it on and off them:
 *
 *                        sent_up                          left
 *          ┌─ DIRECT ──────────────▶ socket ─▶ cell ──────▶
 *   XDP ───┤          └▶ module at nic                    left
 *          │ sent_tc          left_tc   sent_up ┌▶ TAP ─▶ cell ─▶
 *          └─ TC ──────▶ stack ───────▶ tc ─────┴▶ module at kernel
 *
 * The lane goes below at the first packet that finds `target` below and all that
 * was sent up gone: sent_up == left. It goes up at the first packet that finds
 * `target` above, and with each packet that a module raises.
 *
 * On the way TC all packets of the lane go that way, whatever `target` says: what
 * may not be run at tc goes up from there. The way is left at the first packet
 * that finds `target` elsewhere and nothing under way: sent_tc == left_tc,
 * nothing awaited, sent_up == left. It is taken at the first packet that finds
 * `target` at kernel and all that was sent up gone, but never straight from nic,
 * whose redirected packets leave at the end of the driver's poll, later than
 * those of tc: one packet at least goes by the cell in between. So nothing
 * overtakes anything. `level` NIC implies DIRECT.
 *
 * Under more packets than user level carries, all that was sent up is never gone.
 * Then N holds the lane for a moment: what would go up is dropped, until it is.
 *
 * A packet that was sent up and never came (its ring was full) keeps the two
 * apart. Then the cell begins another epoch, which packets carry from then on;
 * when every packet before that is gone for certain, `left` becomes
 * epoch_start + what has left of this epoch.
 *
 * The same between XDP and tc (no memory for its buffer, no way into the lane):
 * XDP begins another tc_epoch when it wants to leave the way TC and waits in vain, or when
 * something has been under way for TAM_TC_PATIENCE jiffies.
 * What was not there by then is `tc_awaited`; TAM_TC_PATIENCE jiffies later it is
 * lost for certain. */
struct tam_lane {
	__u64 sent_up;		/* packets given to user level */
	__u64 left;		/* packets that are gone from there */
	__u64 epoch_start;	/* sent_up when epoch_seen began */
	__u32 epoch_seen;	/* the epoch that packets carry now */
	__u32 epoch;		/* the one that they shall carry; 8 bits */
	__u32 level;		/* enum tam_level: where packets go */
	__u32 target;		/* enum tam_level: where they shall go */
	__u32 program;		/* index in tam_modules, tam_modules_tc */
	__u16 window;		/* bytes of the packet's head that the module sees */
	__u8 edges;		/* bit n: edge n leads somewhere */
	__u8 over;		/* enum tam_over: it has used up its budget */
	__u32 busy;		/* 0: nobody is in the lane, else 1 + the number of the CPU that is */
	__u32 cpu;		/* the CPU that was in it last */
	__u32 trapped;		/* not 0: the module is not run; the cause, or TAM_NOT_A_VERDICT */
	__u32 ran;		/* 1 when it has run below; the cell, in the lane, makes it 0 */
	__u64 sent_tc;		/* packets given to the stack on their way to tc */
	__u64 left_tc;		/* packets that came there, or are lost */
	__u64 tc_awaited;	/* packets of the tc_epoch before that did not come yet */
	__u32 tc_began;		/* jiffies at which tc_epoch began, their low half */
	__u32 tc_drained;	/* the same of when nothing was under way to tc at last */
	__u32 path;		/* enum tam_path */
	__u32 tc_epoch;		/* that packets to tc carry; 8 bits */
	__u16 next[TAM_EDGES_MAX];	/* the entry at the end of each edge, or TAM_NEXT_DOWN */
	__u32 closed;		/* not 0: while the service is down its packets are dropped */
	__u32 session;		/* who pays */
	__u32 held;		/* not 0: nothing more goes up until all that did is gone */
	__u16 account;		/* index in tam_accounts, if `beyond` is not 0 */
	__u16 beyond;		/* enum tam_over: what becomes of packets when that account is empty; 0: it has none */
};
#define TAM_NEXT_DOWN 0xffff	/* drop: the service there is down, and its failure policy is closed */


/* Jiffies (1 s at HZ=1000, 10 s at 100) after which a packet that is not at tc is lost. */
#define TAM_TC_PATIENCE 1000

#define TAM_NOT_A_VERDICT 0xfffffffe	/* in `trapped`: on_packet returned something else */
#define TAM_NOT_RUN 0xffffffff		/* in tam_hand_over.trapped: on_packet was not called */
#define TAM_OVER_BUDGET 0xfffffffd	/* in tam_hand_over.trapped: it was not called, for it has used up its budget */
#define TAM_PROGRAM_NONE 0xffffffff	/* in tam_passage.program: do not call any */
#define TAM_PROGRAM_OVER 0xfffffffe	/* the same, for the budget's sake */

/* From the front door to a module's program and back: one for each entry, and so at
 * an address that the program has as a constant. Who reads or writes it is in the
 * entry's lane. The first 64 bytes are the metadata of docs/reference/module-abi.md, as the
 * module sees them; then comes what the module's program leaves. The compiler
 * (levels/wasm-to-bpf, layout.rs) has the same offsets.
 *
 *  0              64        68        72       76     80          88        96      128
 * +--------------+---------+---------+--------+------+-----------+---------+--------+
 * | ABI metadata | verdict | trapped | padded | zero | fuel used | charged | unused |
 * +--------------+---------+---------+--------+------+-----------+---------+--------+
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
	__u32 verdict;		/* what on_packet returned, when `trapped` is 0 */
	__u32 trapped;		/* 0, a trap's code, or TAM_NOT_RUN */
	__u32 padded;
	__u32 zero;
	__u64 fuel_used;	/* by the entry's modules, sum over all packets */
	__u64 fuel_charged;	/* of fuel_used: what the account of the lane has paid */
	__u64 unused[4];	/* each begins a cache line */
};

/* From the first half of the front door to the second, in XDP and at tc: one for
 * each CPU, since the packet is still on its way when another CPU is in the lane. */
struct tam_passage {
	struct tam_meta meta;	/* the packet's way; as it travels when the module raises it */
	__u8 own_mac[6];	/* of the egress port */
	__u16 moved;		/* not 0: another CPU was in the lane before */
	__u32 mtu;		/* of the route; at tc the length of the IP packet as it came */
	__u32 length;		/* of the frame as it came */
	__u32 program;		/* index in tam_modules or tam_modules_tc, or TAM_PROGRAM_NONE */
	__u32 bytes;		/* of the frame as it came to the module */
	__u64 mark[2];		/* what the module before left; with TAM_META_MARK it travels along */
	__u64 clock_jiffies;	/* the jiffy for which the time was worked out last, */
	__u64 clock_ms;		/* and that time */
	__u32 payer;		/* the session whose share of a port it is */
	__u32 kernel;		/* of a packet whose rule names a port: 0, or the outcome as which the kernel has it */
};

/* What became of an entry's packets below user level, on one CPU. `packets` is
 * the sum of all from `forwarded` on to `drop_share`. */
struct tam_service_stats {
	__u64 packets;		/* given to the module's program, or brought to its lane and not run there */
	__u64 bytes;		/* as they came */
	__u64 forwarded;
	__u64 to_kernel;
	__u64 bounced;
	__u64 redirected;
	__u64 passed_on;	/* to the next entry of the graph, which counts it, too */
	__u64 raised;		/* given to user level, by the module or from tc in its place */
	__u64 plain;		/* not run, or raised and there is no cell: as if there were no rule, unless it is closed */
	__u64 drop_module;	/* the verdict */
	__u64 drop_trap;	/* it trapped, or its verdict is none */
	__u64 drop_no_port;	/* no such port to redirect to */
	__u64 drop_too_long;	/* longer than that port takes */
	__u64 drop_malformed;	/* not to be forwarded as the module left it */
	__u64 drop_budget;	/* it had used up its budget */
	__u64 drop_down;	/* not run, or raised and there is no cell, and the service is closed; or the next one is */
	__u64 drop_rule;	/* passed, and a rule of the next stage says so */
	__u64 drop_lane;	/* at tc, or behind another module: another CPU did not leave the lane in time */
	__u64 drop_cycle;	/* it went round and round between cabled ports */
	__u64 drop_queue;	/* raised, and its session's queue had no room for it */
	__u64 drop_share;	/* nothing was left of its session's share of the port that it was to leave by; at kernel: nor room to wait */
	__u64 handed_over;	/* packets that found the lane at another CPU than the last one */
	__u64 reasons_lost;	/* of drop_module: their reason is in no counter, there are too many */
	__u64 raised_bytes;	/* of those that were raised: as they came */
	__u64 drop_budget_bytes; /* of those that were dropped for the budget's sake */
};

/* What services may still use below user level: those of a session with a promise, by its
 * number, and all without one together. In parts of a unit of fuel: TAM_FUEL_SHIFT.
 *
 *	a packet in a lane:  left -= what the packets before it used (fuel_used - fuel_charged)
 *	the first in a jiffy:  left += jiffies * per_tick, up to `full`
 *	left <= 0:  the module is not run, as the lane's `beyond` says
 *
 * Packets of several CPUs are in lanes of one account: `left` is only added to, and who
 * moves `ticked` fills. The daemon writes the other two, and `left` when it begins. */
struct tam_account {
	__s64 left;
	__u64 ticked;		/* the jiffy until which it is filled */
	__u64 per_tick;
	__u64 full;		/* what it holds at most */
	__u64 sent[2];		/* of a share of a port: bytes that left straight from nic, and from kernel, */
	__u64 packets;		/* and how many packets they were */
	__u64 unused;		/* a cache line */
};
#define TAM_ACCOUNTS_MAX 16384	/* sessions of a node */

/* A share of a port (share.h): its account is in parts of a byte. F the front door writes, C the
 * cell, which maps it.
 *
 *  0         64      80        96     104       112          120    128
 * +---------+-------+---------+------+---------+------------+------+
 * | account | up[2] | dropped | gone | sent up | sent above | zero |
 * |    F, C |   F   |    F    |  C   |    C    |      C     |      |
 * +---------+-------+---------+------+---------+------------+------+
 *
 *	a packet of kernel goes to wait in the cell:      up[epoch] += 1
 *	it has left, and the device has it:               gone += 1
 *	the cell puts one of user level there to wait:    gone -= 1
 *	wait:                                             up[0] + up[1] - gone
 *
 * The epoch is that of the room which the packet takes, and what is lost on its way is found as
 * with rooms (tam_room). The first records, by the number of the port, are for all sessions that
 * have no share of it. */
struct tam_line {
	struct tam_account account;
	__u64 up[2];		/* packets of kernel level that went to wait, by the last bit of the epoch */
	__u64 dropped[2];	/* packets that found nothing left at nic; and at kernel no room to wait */
	__u64 gone;
	__u64 sent_up;		/* bytes of those that waited, and left */
	__u64 sent_above;	/* bytes of packets of user level that left */
	__u64 unused;		/* two cache lines */
};
#define TAM_LINES_MAX (TAM_PORTS_MAX + 16384)
#define TAM_SESSION_SYSTEM 0	/* the node's own services */
#define TAM_ETHERNET_REST 24	/* what goes with each packet on an Ethernet: preamble, FCS, gap */
#define TAM_FUEL_SHIFT 16
#define TAM_FILL_MAX (1 << 14)	/* jiffies that are made good at once: beyond, the sum could overflow */

/* One end of a flow: IPv4 fills the first four bytes of the address. */
struct tam_end {
	__u8 address[16];
	__be16 port_be;		/* or an ICMP identifier; of a later fragment the IP identification */
	__u16 zero;
};

/* The end of what the cell writes to its TAP device (ask.h). */
struct tam_request {
	__u32 number;
	__u16 port;		/* by which the packet is received; 0xffff: by the node's own device */
	__u8 kind;		/* TAM_ASK_* */
	__u8 changed;		/* TAM_CHANGED_*, of TAM_ASK_NOTE: which of the two are to be noted */
	struct tam_end source;	/* with which it leaves */
	struct tam_end destination;	/* with which it came */
};
#define TAM_CHANGED_SOURCE 1
#define TAM_CHANGED_DESTINATION 2
#define TAM_ASK_EGRESS 0
#define TAM_ASK_NOTE 1
#define TAM_ASK_ARRIVE 2
#define TAM_ETHERTYPE_ASKED 0x88b5	/* of IEEE 802 for local experiments: the kernel reads nothing behind it */

/* Answer to the last request. */
struct tam_answer {
	__u64 value;		/* its number << 32 | 1 + the number of a port, or 0: none */
	__u64 unused[7];	/* a cache line */
};

#define TAM_HEAD_BYTES 66	/* Ethernet with a tag, IPv6 and UDP */
#define TAM_HEAD_NOT 0		/* nobody watches the queue */
#define TAM_HEAD_WANTED 1	/* the next packet that is dropped leaves its head: the cell writes it, */
#define TAM_HEAD_TAKEN 2	/* the front door writes this one, */
#define TAM_HEAD_THERE 3	/* and this, and the cell reads the head */

/* What may wait for a session on its way to user level and there, in bytes of packet memory:
 * its queue. Those of sessions that reserved none count in one more record, too, which all of
 * them share. F the front door writes, C the cell, which maps it.
 *
 *  0      8         16        24        32      36       40     64     72     128
 * +------+---------+---------+---------+-------+--------+------+------+------+
 * | most | sent[0] | sent[1] | dropped | epoch | shared | zero | done | zero |
 * |  C   |    F    |    F    |    F    |   C   |   C    |      |  C   |      |
 * +------+---------+---------+---------+-------+--------+------+------+------+
 *
 *	a packet goes up:         sent[epoch] += its memory, if then no more than `most` waits
 *	the cell is done with it: done += its memory
 *	what the cell puts there itself, a module's frames for one: done -= their memory
 *	waits:                    sent[0] + sent[1] - done
 *
 * A packet that was sent up and never came (its socket went, its device failed it) would keep
 * its room for ever. So the cell has packets counted in another epoch each second, all rooms
 * in the same; a second later whatever of the epoch before has not come is lost, and done += it.
 * Should some come after all they are missing in the next sum of that epoch. */
struct tam_room {
	__u64 most;		/* what may wait; 0: nothing is counted, nobody has a claim */
	__u64 sent[2];		/* memory of what was given to user level, by the last bit of the epoch */
	__u64 dropped;		/* packets for which there was no room */
	__u32 epoch;
	__u32 shared;		/* not 0: it reserved nothing, and tam_rooms[TAM_ROOM_SHARED] counts, too */
	__u64 unused[3];
	__u64 done;		/* in a cache line of its own: the front door reads it, and writes the others */
	__u64 unused_done[7];
	__u32 head_state;	/* TAM_HEAD_*: for a module that watches the queue, */
	__u16 head_length;
	__u8 head[TAM_HEAD_BYTES];	/* what a packet began with for which there was no room */
	__u8 unused_end[56];
};
#define TAM_ROOMS_MAX 16385	/* sessions of a node, and what those without a queue share */
#define TAM_ROOM_SHARED 16384
#define TAM_FRAME_MEMORY 4096	/* bytes of one frame of packet memory, */
#define TAM_FRAME_BYTES 3840	/* and those of a packet that it holds */

/* Why the kernel's stack dropped what the node has left to it (stack.h): the kernel's enum
 * skb_drop_reason, whose names are in its BTF. Linux 6.18 has 128. */
#define TAM_STACK_REASONS_MAX 256
#define TAM_STACK_OTHER (TAM_STACK_REASONS_MAX - 1)	/* a reason beyond them */
#define TAM_STACK_OWN TAM_PORTS_MAX	/* as a port's number: what the cell gave to the kernel */
#define TAM_STACK_ARRIVALS (TAM_PORTS_MAX + 1)
#define TAM_MARK_ENDED 0x54420000	/* of a packet that a program of the node's at tc drops */

/* What a reason says of a packet, and who else counts it. */
enum tam_stack_kind {
	TAM_STACK_NOT = 0,	/* nothing: the packet is no drop, a copy of it, or the front door's (XDP) */
	TAM_STACK_DROP = 1,
	TAM_STACK_AT_DEVICE = 2,	/* the device that it came in by counts it, too */
	TAM_STACK_AT_TC = 3,	/* a program at tc dropped it: the node's mark and count theirs */
	TAM_STACK_BY_DEVICE = 4,	/* when it was being sent, the device counts it */
	TAM_STACK_NETFILTER = 5,	/* at a packet port this takes from the kernel what the cell has */
	TAM_STACK_UNSPECIFIED = 6,	/* as TAM_STACK_BY_DEVICE; IPv6 multicast is no drop */
	TAM_STACK_NO_SOCKET = 7,	/* an ICMP echo reply is no drop */
};

/* What the kernel dropped of what came in by one port, on one CPU. */
struct tam_stack_stats {
	__u64 device;		/* buffers that its device counts as dropped, too */
	__u64 reasons[TAM_STACK_REASONS_MAX];	/* frames */
};

struct tam_reason_key {
	__u16 entry;
	__u16 reason;
};

#endif
