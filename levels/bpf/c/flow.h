/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Flows, the maps of the front door, and helpers that count packets and hash keys. */
#ifndef TAM_FLOW_H
#define TAM_FLOW_H

#include "parse.h"
#include "ports.h"
#include "tap.h"

/* Entry of the flow cache. */
struct tam_flow {
	__u64 key[TAM_KEY_WORDS];
	__u64 generation;	/* 0: empty */
	/* As it travels with a packet of the flow to the cell, except the offsets and
	 * TAM_META_ROUTED; rule is TAM_RULE_NONE when none matched. Its rules are those
	 * of the stages that decide something, in their order. */
	struct tam_meta meta;
	__u32 mtu;		/* L3 MTU of the route */
	__u8 own_mac[6];
	__u8 action;		/* enum tam_action */
	__u8 outcome;		/* TAM_FORWARDED when routed, else the reason why the kernel routes it */
	__u16 counted[2];	/* further rules that only count, or TAM_RULE_NONE */
};

/* Entry of the large cache: two cache lines. */
struct tam_large_flow {
	struct tam_flow flow;
	__u64 unused;
};
_Static_assert(sizeof(struct tam_large_flow) == 128, "one flow is two cache lines");

/* Key of a datagram's fragments. In IPv6 only the first fragment shows the protocol. */
struct tam_datagram {
	__u8 source[16];
	__u8 destination[16];
	__u16 id;
	__u8 protocol;		/* of IPv4 */
	__u8 ip_version;
};

struct tam_l4_ports {
	__be16 source_be;
	__be16 destination_be;
	__u8 protocol;
	__u8 hidden;
	__u16 zero;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TAM_PORTS_MAX);
	__type(key, __u32);
	__type(value, struct tam_port_stats);
} tam_stats SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TAM_FLOWS_MAX);
	__type(key, __u32);
	__type(value, struct tam_flow);
} tam_flows SEC(".maps");

/* Large cache, for flows that do not fit the small one; large_cache.h. The loader
 * enlarges both maps. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);	/* aligned to a page, so entries are aligned to cache lines */
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tam_large_flow);
} tam_large SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} tam_tags SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * TAM_MASKS_ALL);
	__type(key, __u32);
	__type(value, struct tam_mask);
} tam_masks SEC(".maps");

/* Table of a flow list; its values are unused. */
struct tam_flow_list {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct tam_key);
	__type(value, __u32);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, TAM_LISTS_MAX);
	__type(key, __u32);
	__array(values, struct tam_flow_list);
} tam_lists SEC(".maps");

/* Filter of each rule set: the bit at hash(mask, masked key) is set for each key that it
 * has; find_rule() looks up the hash table only where it is set. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2 << (TAM_FILTER_BITS - 6));
	__type(key, __u32);
	__type(value, __u64);
} tam_filter SEC(".maps");

/* Working memory for one packet on its CPU: large data that is needed across calls lies
 * here, not on the stack, of which the deepest path of calls has 512 bytes
 * (levels/bpf/src/call_stack.rs). Programs at XDP and tc run to their end before another
 * packet of that CPU comes. */
struct tam_scratch {
	struct packet packet;	/* result of take_apart() */
	struct tam_key key;	/* key of find_rule(), */
	struct tam_rule best[2][TAM_STAGES];	/* and its result in each range of masks */
	struct bpf_fib_lookup fib;
	struct tam_datagram datagram;
	struct tam_l4_ports ports;
	struct ipv6hdr ip;	/* or of IPv4, as read by read_ends() */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tam_scratch);
} tam_scratch SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, TAM_RULES_MAX);
	__type(key, __u32);
	__type(value, struct tam_rule_fact);
} tam_rule_facts SEC(".maps");

struct tam_rule_hash {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4 * TAM_RULE_ENTRIES_MAX);	/* one for each enum tam_hidden */
	__type(key, struct tam_key);
	__type(value, struct tam_rule);
};
struct tam_rule_hash tam_rules_0 SEC(".maps");
struct tam_rule_hash tam_rules_1 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TAM_RULES_MAX);
	__type(key, __u32);
	__type(value, struct tam_rule_stats);
} tam_rule_counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, TAM_FRAGMENTS_MAX);
	__type(key, struct tam_datagram);
	__type(value, struct tam_l4_ports);
} tam_fragments SEC(".maps");

/* IPv4 addresses of the machine itself; values are unused. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, TAM_OWN_MAX);
	__type(key, struct tam_own_prefix);
	__type(value, __u32);
} tam_own SEC(".maps");

/* Port number -> device to redirect to. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, TAM_PORTS_MAX);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
} tam_devices SEC(".maps");

/* Port number * TAM_QUEUES_MAX + queue -> socket of the cell. */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, TAM_PORTS_MAX * TAM_QUEUES_MAX);
	__type(key, __u32);
	__type(value, __u32);
} tam_sockets SEC(".maps");

/* Set by tests: parse_common() must decide as parse() does. */
const volatile __u32 take_every_frame_apart = 0;

/* Counts the outcome of that many frames and returns its XDP action. */
static __always_inline int finish_all(struct tam_port_stats *stats, __u32 outcome, __u32 frames)
{
	if (outcome < TAM_OUTCOMES)
		stats->outcomes[outcome] += frames;
	TAP_OUTCOME(outcome);
	return outcome >= TAM_DROP_TRUNCATED ? XDP_DROP : XDP_PASS;
}

static __always_inline int finish(struct tam_port_stats *stats, __u32 outcome)
{
	return finish_all(stats, outcome, 1);
}

static __always_inline void count_rule(__u32 rule, __u32 frames, __u32 bytes)
{
	struct tam_rule_stats *count = bpf_map_lookup_elem(&tam_rule_counts, &rule);

	if (count) {
		count->packets += frames;
		count->bytes += bytes;
	}
}

/* Returns the summary of a rule; 0 when there is no rule with that number. */
static __always_inline const struct tam_rule_fact *fact_of(__u32 rule)
{
	return rule == TAM_RULE_NONE ? 0 : bpf_map_lookup_elem(&tam_rule_facts, &rule);
}

/* Returns the session that pays for the packets of a rule. */
static __always_inline __u32 session_of(__u32 rule)
{
	const struct tam_rule_fact *fact = fact_of(rule);

	return fact ? fact->session : 0;
}

/* Counts the rules of a packet beside its first. */
static __noinline int count_others(const struct tam_flow *flow, __u32 frames, __u32 bytes)
{
	if (!flow)
		return 0;
	for (int at = 0; at < 2; at++) {
		if (flow->meta.then[at] != TAM_RULE_NONE)
			count_rule(flow->meta.then[at], frames, bytes);
		if (flow->counted[at] != TAM_RULE_NONE)
			count_rule(flow->counted[at], frames, bytes);
	}
	return 0;
}

/* Computes the hash of a key: the sum of its 32-bit words, each times a secret random
 * 64-bit factor. The upper 32 bits of that sum are as good as random: two different keys
 * have the same with probability 2^-32, whoever chose them (multiply-shift over vectors;
 * Dietzfelbinger 1996, section 3). */
static __always_inline __u64 hash_of(const __u64 k[TAM_KEY_WORDS], const __u64 factors[TAM_HASH_KEYS])
{
	__u64 sum = 0;

	for (int word = 0; word < TAM_KEY_WORDS; word++)
		sum += (__u32)k[word] * factors[2 * word] + (k[word] >> 32) * factors[2 * word + 1];
	return sum;
}

/* Computes the hash of a common frame, whose key has gaps: addresses, L4 ports, protocol,
 * traffic class, TCP flags and arrival port are four words. The MACs are left out: those
 * of one port's flows are few. */
static __always_inline __u64 common_hash(const __u64 k[TAM_COMMON_WORDS],
					 const __u64 factors[TAM_HASH_KEYS])
{
	__u64 rest = k[2] >> 56 | k[1] >> 56 << 8 | (k[5] >> TAM_COMMON_FLAGS & 0xff) << 16 |
		     port_number << 24;

	return ((__u32)k[3] | k[4] >> 32) * factors[0] + (k[3] >> 32) * factors[1] +
	       (__u32)k[4] * factors[2] + rest * factors[3];
}

/* Returns the slot of the flow cache. */
static __always_inline __u32 slot_of(__u64 hash)
{
	return hash >> 51 & (TAM_FLOWS_MAX - 1);
}

static __always_inline int same_common(const __u64 x[TAM_COMMON_WORDS],
				       const __u64 y[TAM_COMMON_WORDS])
{
	return !((x[0] ^ y[0]) | (x[1] ^ y[1]) | (x[2] ^ y[2]) | (x[3] ^ y[3]) | (x[4] ^ y[4]) |
		 (x[5] ^ y[5]));
}

#endif
