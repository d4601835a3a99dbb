/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Rules and routes: the flow cache, and what fills it.
 *
 * Rules are searched by tuple space: the rules of each set of matched fields
 * (mask) are one exact lookup in a hash, masks are tried in the order of their
 * best rule. There are two rule sets; bit 0 of the generation says which one is
 * active, so that a change becomes visible with one store.
 *
 * A cache entry holds rule and route of one flow: one CPU, no lock.
 *
 *   tam_flows[CPU][slot(key)] = key | generation | rule ... | egress, MACs, MTU
 *
 * It is good while its generation is the node's. The daemon makes a new one for
 * every change of rules, routes, neighbours, addresses and devices that it
 * hears of, and says by routes_heard that it still listens. Behind it lies a larger
 * one, if the node has it (large_cache.h).
 */
#ifndef TAM_CLASSIFY_H
#define TAM_CLASSIFY_H

#include "parse.h"
#include "tap.h"

/* One entry of the flow cache. */
struct tam_flow {
	__u64 key[TAM_KEY_WORDS];
	__u64 generation;	/* 0: empty */
	/* As it travels with a packet of the flow to the cell, but for the offsets and
	 * TAM_META_ROUTED; rule is TAM_RULE_NONE when none matched. Its rules are those of the
	 * stages that decide something, in their order. */
	struct tam_meta meta;
	__u32 mtu;		/* L3 MTU of the route */
	__u8 own_mac[6];
	__u8 action;		/* enum tam_action */
	__u8 outcome;		/* TAM_FORWARDED when routed, else why the kernel routes it */
	__u16 counted[2];	/* further rules that only count, or TAM_RULE_NONE */
};

/* One of the large cache: two cache lines. */
struct tam_large_flow {
	struct tam_flow flow;
	__u64 unused;
};
_Static_assert(sizeof(struct tam_large_flow) == 128, "one flow is two cache lines");

/* Fragments of one datagram. */
struct tam_datagram {
	__u8 source[16];
	__u8 destination[16];
	__u16 id;
	__u8 protocol;
	__u8 ip_version;
};

struct tam_l4_ports {
	__be16 source_be;
	__be16 destination_be;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tam_config);
} tam_shared SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TAM_PORTS_MAX);
	__type(key, __u32);
	__type(value, struct tam_port_config);
} tam_ports SEC(".maps");

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

/* The large cache, for flows that the small one has no room for; large_cache.h. The
 * loader makes both maps larger. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);	/* begins on a page, so entries do on cache lines */
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
	__uint(max_entries, 2 * TAM_MASKS_MAX);
	__type(key, __u32);
	__type(value, struct tam_mask);
} tam_masks SEC(".maps");

/* The flows of a list; its values mean nothing. */
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

/* For each rule set: which keys it may have. The bit at hash(mask, masked key) is set
 * for each that it has; find_rule() asks the hash table only where it is. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2 << (TAM_FILTER_BITS - 6));
	__type(key, __u32);
	__type(value, __u64);
} tam_filter SEC(".maps");

/* The key that find_rule() looks up, and what it has found: the stack has no room for it. */
struct tam_search {
	struct tam_key key;
	struct tam_rule best[TAM_STAGES];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tam_search);
} tam_masked SEC(".maps");

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
	__uint(max_entries, TAM_RULE_ENTRIES_MAX);
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

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2 * TAM_VLANS_MAX);
	__type(key, struct tam_vlan_key);
	__type(value, struct tam_vlan);
} tam_vlans SEC(".maps");

/* The machine's own IPv4 addresses; values mean nothing. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, TAM_OWN_MAX);
	__type(key, struct tam_own_prefix);
	__type(value, __u32);
} tam_own SEC(".maps");

/* Which port a device is: ifindex -> port number. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, TAM_PORTS_MAX);
	__type(key, __u32);
	__type(value, __u32);
} tam_egress SEC(".maps");

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

/* Tests set it: what parse_common() decides must be what parse() decides. */
const volatile __u32 take_every_frame_apart = 0;

/* Counts the outcome of so many frames and returns the XDP action that belongs to it. */
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

/* What a rule says; 0: there is none of that number. */
static __always_inline const struct tam_rule_fact *fact_of(__u32 rule)
{
	return rule == TAM_RULE_NONE ? 0 : bpf_map_lookup_elem(&tam_rule_facts, &rule);
}

/* Who pays for the packets of a rule. */
static __always_inline __u32 session_of(__u32 rule)
{
	const struct tam_rule_fact *fact = fact_of(rule);

	return fact ? fact->session : 0;
}

/* The rules of a packet beside its first. */
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

/* The hash of a key: the sum of its 32-bit words, each times a random 64-bit factor
 * that nobody outside knows. Of that sum the upper 32 bits are as good as random:
 * two keys that differ have the same with probability 2^-32, whoever chose them
 * (multiply-shift over vectors; Dietzfelbinger 1996, section 3). */
static __always_inline __u64 hash_of(const __u64 k[TAM_KEY_WORDS], const __u64 factors[TAM_HASH_KEYS])
{
	__u64 sum = 0;

	for (int word = 0; word < TAM_KEY_WORDS; word++)
		sum += (__u32)k[word] * factors[2 * word] + (k[word] >> 32) * factors[2 * word + 1];
	return sum;
}

/* The same of a common frame, whose key has gaps: addresses, L4 ports, protocol,
 * traffic class, TCP flags and arrival port are four words. The MACs are left out:
 * those of one port's flows are few. */
static __always_inline __u64 common_hash(const __u64 k[TAM_COMMON_WORDS],
					 const __u64 factors[TAM_HASH_KEYS])
{
	__u64 rest = k[2] >> 56 | k[1] >> 56 << 8 | (k[5] >> TAM_COMMON_FLAGS & 0xff) << 16 |
		     port_number << 24;

	return ((__u32)k[3] | k[4] >> 32) * factors[0] + (k[3] >> 32) * factors[1] +
	       (__u32)k[4] * factors[2] + rest * factors[3];
}

/* The slot of the flow cache. */
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

static __always_inline int same_key(const __u64 x[TAM_KEY_WORDS], const __u64 y[TAM_KEY_WORDS])
{
	return same_common(x, y) && !((x[6] ^ y[6]) | (x[7] ^ y[7]));
}

/* The first fragment leaves its L4 ports for the later ones. One that comes
 * before its first is matched without them. */
__noinline int track_fragment(struct packet *packet)
{
	if (!packet)
		return 0;

	struct tam_datagram datagram = {
		.id = packet->fragment_id,
		.protocol = packet->key.protocol,
		.ip_version = packet->key.ip_version,
	};
	struct tam_l4_ports ports = {
		.source_be = packet->key.source_port_be,
		.destination_be = packet->key.destination_port_be,
	};

	__builtin_memcpy(datagram.source, packet->key.source, 16);
	__builtin_memcpy(datagram.destination, packet->key.destination, 16);
	if (packet->key.fragment == TAM_FRAGMENT_FIRST) {
		bpf_map_update_elem(&tam_fragments, &datagram, &ports, BPF_ANY);
		return 0;
	}

	struct tam_l4_ports *first = bpf_map_lookup_elem(&tam_fragments, &datagram);

	if (first) {
		packet->key.source_port_be = first->source_be;
		packet->key.destination_port_be = first->destination_be;
	}
	return 0;
}

/* The hash of a masked key, as it lies in `to`: the sum of its 32-bit words, each times
 * a secret factor (hash_of), from the mask's salt on. Words that the mask has no bits
 * in are left out. */
static __always_inline __u64 mask_key(const __u64 *from, const struct tam_mask *mask, __u64 *to,
				      const __u64 factors[TAM_HASH_KEYS])
{
	const __u64 *bits = (const __u64 *)&mask->bits;
	__u64 sum = mask->salt;

#define TAM_TAKE(word)                                            \
	do {                                                          \
		to[word] = from[word] & bits[word];                       \
		sum += (__u32)to[word] * factors[2 * (word)] +            \
		       (to[word] >> 32) * factors[2 * (word) + 1];        \
	} while (0)
	TAM_TAKE(0);
	TAM_TAKE(2);
	TAM_TAKE(4);
	TAM_TAKE(5);
	if (mask->rest & TAM_REST_UPPER) {
		TAM_TAKE(1);
		TAM_TAKE(3);
	} else {
		to[1] = 0;
		to[3] = 0;
	}
	if (mask->rest & TAM_REST_LINK) {
		TAM_TAKE(6);
		TAM_TAKE(7);
	} else {
		to[6] = 0;
		to[7] = 0;
	}
#undef TAM_TAKE
	return sum;
}

/* What the list of a mask says of a key. */
static __always_inline struct tam_rule *find_listed(struct tam_mask *mask, const struct tam_key *key)
{
	void *list = bpf_map_lookup_elem(&tam_lists, &mask->list);

	return list && bpf_map_lookup_elem(list, key) ? &mask->rule : 0;
}

static __always_inline int may_be_there(__u32 set, __u64 hash)
{
	__u32 bit = hash >> (64 - TAM_FILTER_BITS), at = set << (TAM_FILTER_BITS - 6) | bit >> 6;
	__u64 *word = bpf_map_lookup_elem(&tam_filter, &at);

	return word && *word >> (bit & 63) & 1;
}

/* Takes the best rule of a stage into a flow, behind those of the stages before. */
static __always_inline void add_rule(struct tam_flow *flow, const struct tam_rule *rule)
{
	__u16 number = rule->rule;

	if (flow->action == TAM_ACTION_DROP || flow->action == TAM_ACTION_OUT)
		return;		/* it does not come that far */
	if (rule->action != TAM_ACTION_FORWARD && flow->action == TAM_ACTION_FORWARD) {
		number = flow->meta.rule;	/* it only counts */
		flow->meta.rule = rule->rule;
		flow->meta.entry = rule->entry;
		flow->action = rule->action;
	} else if (flow->meta.rule == TAM_RULE_NONE) {
		flow->meta.rule = number;
		return;
	} else if (rule->action != TAM_ACTION_FORWARD) {
		flow->meta.then[flow->meta.then[0] != TAM_RULE_NONE] = number;
		return;
	}
	if (number != TAM_RULE_NONE)
		flow->counted[flow->counted[0] != TAM_RULE_NONE] = number;
}

/* Finds the best rules of the active set, one of each stage.
 *
 * Functions that are not static are verified once, and not with each way on which the
 * packet may have come to them: all together would be more than the verifier takes. */
__noinline int find_rule(const struct packet *packet, __u32 set, const struct tam_config *shared)
{
	if (!packet || !shared)
		return 0;

	__u32 count = shared->mask_count[set &= 1], zero = 0;
	struct tam_search *search = bpf_map_lookup_elem(&tam_masked, &zero);

	if (!search)
		return 0;	/* the map has it: not reached */

	struct tam_key *key = &search->key;

	for (int stage = 0; stage < TAM_STAGES; stage++)
		search->best[stage].rank = 0xffffffff;
	for (__u32 i = 0; i < TAM_MASKS_MAX; i++) {
		if (i >= count)
			break;

		__u32 at = set * TAM_MASKS_MAX + i;
		struct tam_mask *mask = bpf_map_lookup_elem(&tam_masks, &at);

		if (!mask)
			break;

		__u32 stage = mask->stage;

		if (stage >= TAM_STAGES)
			break;		/* not reached */
		if (search->best[stage].rank < mask->rank_best) {
			if (mask->alone)
				break;
			continue;
		}
		/* A frame that is not IP belongs to the rules that name its ethertype. */
		if (!packet->key.ip_version && !mask->bits.ethertype_be)
			continue;

		__u64 hash = mask_key((const __u64 *)&packet->key, mask, (__u64 *)key,
				      shared->hash_keys);
		struct tam_rule *rule;

		if (mask->list) {
			rule = find_listed(mask, key);
		} else if (may_be_there(set, hash)) {
			key->mask = i;
			rule = set ? bpf_map_lookup_elem(&tam_rules_1, key)
				   : bpf_map_lookup_elem(&tam_rules_0, key);
		} else {
			continue;
		}

		if (rule && rule->rank < search->best[stage].rank)
			search->best[stage] = *rule;
	}
	return 0;
}

/* Takes the rules that were found into `flow`. */
__noinline int take_rules(struct tam_flow *flow)
{
	__u32 zero = 0;
	struct tam_search *search = bpf_map_lookup_elem(&tam_masked, &zero);

	if (!flow)
		return 0;
	flow->meta.rule = TAM_RULE_NONE;
	flow->meta.then[0] = TAM_RULE_NONE;
	flow->meta.then[1] = TAM_RULE_NONE;
	flow->meta.entry = 0;
	flow->counted[0] = TAM_RULE_NONE;
	flow->counted[1] = TAM_RULE_NONE;
	flow->action = TAM_ACTION_FORWARD;
	if (!search)
		return 0;	/* the map has it: not reached */
	for (int stage = 0; stage < TAM_STAGES; stage++)
		if (search->best[stage].rank != 0xffffffff)
			add_rule(flow, &search->best[stage]);
	return 0;
}

/* Returns whether an IPv4 packet claims to come from this machine and its device does not accept
 * that: Linux drops it as a martian source (fib_validate_source, net/ipv4/fib_frontend.c). IPv6
 * is forwarded whoever sent it. */
__noinline int source_is_own(const struct packet *packet, const struct tam_port_config *config)
{
	if (!packet || !config || packet->key.ip_version != 4)
		return 0;

	struct tam_own_prefix source = {
		.length = 32,
		.address_be = *(const __be32 *)packet->key.source,
	};
	struct tam_vlan_key key = {
		.ifindex = config->ifindex,
		.vlan = packet->key.vlan & 0x0fff,
	};

	if (!bpf_map_lookup_elem(&tam_own, &source))
		return 0;

	struct tam_vlan *vlan = packet->key.vlan ? bpf_map_lookup_elem(&tam_vlans, &key) : 0;

	return !((vlan ? vlan->flags : config->flags) & TAM_PORT_ACCEPTS_OWN);
}

#ifndef TAM_AT_TC
/* Source addresses that the kernel must judge: it answers or logs, we do not. */
static __always_inline int source_is_odd(const struct tam_key *key)
{
	const __u8 *a = key->source;

	if (key->ip_version == 4)
		return a[0] == 0 || a[0] == 127 || a[0] >= 224;
	return a[0] == 0xff || !(((__u64 *)a)[0] | (((__u64 *)a)[1] & bpf_cpu_to_be64(~1ULL)));
}

/* Destinations that are nobody's unicast address, whatever the routes say: the
 * FIB helper would follow a default route. For IPv6 it does not. */
static __always_inline int destination_is_odd(const struct tam_key *key)
{
	const __u8 *a = key->destination;

	return key->ip_version == 4 && (a[0] == 0 || a[0] == 127 || (a[0] & 0xf0) == 0xe0 ||
					*(const __u32 *)a == 0xffffffff);
}

static __always_inline void fib_addresses(struct bpf_fib_lookup *fib, const __u8 *source,
					  const __u8 *destination, __u8 ip_version)
{
	if (ip_version == 4) {
		fib->family = AF_INET;
		fib->ipv4_src = *(const __be32 *)source;
		fib->ipv4_dst = *(const __be32 *)destination;
	} else {
		fib->family = AF_INET6;
		__builtin_memcpy(fib->ipv6_src, source, 16);
		__builtin_memcpy(fib->ipv6_dst, destination, 16);
	}
}

/* Reverse path filtering (RFC 3704), as the port's sysctl asks for. `fib` is zero
 * before and after: the stack has no room for two. */
static __noinline int source_unreachable(struct xdp_md *ctx, const struct packet *packet, __u32 rpf,
					 __u32 ifindex, struct bpf_fib_lookup *fib)
{
	int answer, unreachable;

	if (!packet || !fib)
		return 1;
	fib->ifindex = ifindex;
	fib_addresses(fib, packet->key.destination, packet->key.source, packet->key.ip_version);
	answer = bpf_fib_lookup(ctx, fib, sizeof(*fib), BPF_FIB_LOOKUP_SKIP_NEIGH);
	unreachable = answer != BPF_FIB_LKUP_RET_SUCCESS ||
		      (rpf == TAM_RPF_STRICT && fib->ifindex != ifindex);
	__builtin_memset(fib, 0, sizeof(*fib));
	return unreachable;
}

static __always_inline int fib_outcome(long answer)
{
	switch (answer) {
	case BPF_FIB_LKUP_RET_SUCCESS:
		return TAM_FORWARDED;
	case BPF_FIB_LKUP_RET_NOT_FWDED:
		return TAM_KERNEL_LOCAL;
	case BPF_FIB_LKUP_RET_NO_NEIGH:
		return TAM_KERNEL_NEIGHBOUR;
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
		return TAM_KERNEL_TOO_BIG;
	default:
		return TAM_KERNEL_OTHER;
	}
}

/* The route of a packet, into `flow`; returns TAM_FORWARDED or why the kernel routes it. */
__noinline int find_route(struct xdp_md *ctx, const struct packet *packet,
			  const struct tam_port_config *config, struct tam_flow *flow)
{
	if (!packet || !config || !flow)
		return TAM_KERNEL_OTHER;

	struct bpf_fib_lookup fib = {};
	__u32 ifindex = config->ifindex, rpf = config->rpf, flags = config->flags;
	int outcome;

	if (config->slow & ~TAM_SLOW_NO_REDIRECT)
		return TAM_KERNEL_SLOW;
	if (source_is_odd(&packet->key))
		return TAM_KERNEL_SOURCE;
	if (destination_is_odd(&packet->key))
		return TAM_KERNEL_LOCAL;
	if (packet->vlan_tags > 1)
		return TAM_KERNEL_VLAN_DEPTH;
	if (packet->key.vlan) {
		struct tam_vlan_key key = {
			.ifindex = ifindex,
			.vlan = packet->key.vlan & 0x0fff,
		};
		struct tam_vlan *vlan = bpf_map_lookup_elem(&tam_vlans, &key);

		if (!vlan)
			return TAM_KERNEL_OTHER;
		ifindex = vlan->ifindex;
		rpf = vlan->rpf;
		flags = vlan->flags;
	}
	/* The FIB helper asks the device, which is a router by its own setting alone. */
	if (packet->key.ip_version == 6 && flags & TAM_PORT_NO_V6)
		return TAM_KERNEL_OTHER;
	if (rpf != TAM_RPF_NONE && source_unreachable(ctx, packet, rpf, ifindex, &fib))
		return TAM_KERNEL_SOURCE;

	fib.ifindex = ifindex;
	fib.tos = packet->tos;
	fib.l4_protocol = packet->key.protocol;
	fib.sport = packet->key.source_port_be;
	fib.dport = packet->key.destination_port_be;
	fib.tot_len = packet->ip_length;
	fib_addresses(&fib, packet->key.source, packet->key.destination, packet->key.ip_version);
	outcome = fib_outcome(bpf_fib_lookup(ctx, &fib, sizeof(fib), 0));
	if (outcome != TAM_FORWARDED)
		return outcome;

	__u32 egress = fib.ifindex;
	struct tam_vlan_key up = { .ifindex = egress, .vlan = TAM_VLAN_UP };
	struct tam_vlan *below = bpf_map_lookup_elem(&tam_vlans, &up);

	if (below) {
		egress = below->ifindex;
		flow->meta.egress_vlan = TAM_VLAN_PRESENT | below->vlan;
	}

	__u32 *number = bpf_map_lookup_elem(&tam_egress, &egress);

	if (!number)
		return TAM_KERNEL_EGRESS;
	if (fib.ifindex == ifindex)
		return TAM_KERNEL_OTHER;	/* back where it came from: the kernel sends a redirect */

	struct tam_port_config *port = bpf_map_lookup_elem(&tam_ports, number);

	if (port && port->flags & (TAM_PORT_RAW | TAM_PORT_PACKET))
		return TAM_KERNEL_EGRESS;	/* the kernel has the neighbour, or there is none */
	if (!port || port->slow)
		return TAM_KERNEL_SLOW;
	flow->meta.egress_port = *number;
	flow->mtu = fib.mtu_result;
	__builtin_memcpy(flow->meta.next_hop, fib.dmac, ETH_ALEN);
	__builtin_memcpy(flow->own_mac, fib.smac, ETH_ALEN);
	return TAM_FORWARDED;
}

/* A sender that offloads checksums over a device without wire (veth) leaves the
 * folded sum of the pseudo-header in the field. Redirected, the packet would lose
 * the note that it must be completed; the kernel keeps it. One flow in 65,536
 * looks so by chance, and only loses the fast path. */
__noinline int checksum_is_partial(struct xdp_md *ctx, const struct packet *packet)
{
	if (!packet)
		return 0;

	void *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;
	const __u32 *words = (const __u32 *)packet->key.source;
	__u32 l4 = packet->l4_offset, length = packet->ip_length + packet->l3_offset - l4;
	__u64 sum = 0;
	__u32 field;

	if (packet->key.protocol == IPPROTO_TCP)
		field = l4 + 16;
	else if (packet->key.protocol == IPPROTO_UDP)
		field = l4 + 6;
	else
		return 0;
	if (packet->key.fragment || field > TAM_HEADERS_MAX || data + field + 2 > data_end)
		return 0;
	/* Source and destination lie behind each other; IPv4 leaves zeroes. */
	for (int word = 0; word < 8; word++)
		sum += words[word];
	sum += bpf_htons(packet->key.protocol) + bpf_htons(length);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return *(__u16 *)(data + field) == sum && sum;
}
#endif

/* Returns 1 for a frame that is tagged for a VLAN of which its port has no device: the kernel drops
 * it. An identifier of 0 is only a priority (802.1Q, 9.6). */
__noinline int is_of_unknown_vlan(__u32 ifindex, __u16 tag)
{
	struct tam_vlan_key key = { .ifindex = ifindex, .vlan = tag & 0x0fff };

	return key.vlan && !bpf_map_lookup_elem(&tam_vlans, &key);
}

/* Finds rule and route of a packet as they are in this generation, and puts them into
 * its cache slot. */
static __noinline void resolve(tam_context *ctx, const struct packet *packet,
			       const struct tam_config *shared, struct tam_flow *flow,
			       __u64 generation)
{
	__u32 set = generation & 1, port = port_number;
	struct tam_port_config *config = bpf_map_lookup_elem(&tam_ports, &port);

	if (!config)
		return;		/* the map is as large as port_number allows: not reached */
	flow->generation = 0;
	flow->mtu = 0;
	__builtin_memset(&flow->meta, 0, sizeof(flow->meta));
	flow->meta.arrival_port = port_number;
	flow->meta.flow_hash = flow_hash(packet);
	flow->meta.flags = (packet->key.fragment ? TAM_META_FRAGMENT : 0) |
			   (packet->key.fragment == TAM_FRAGMENT_LATER ? TAM_META_LATER_FRAGMENT : 0) |
			   (__u32)packet->key.ip_version << 8 | (__u32)packet->key.protocol << 16;
	find_rule(packet, set, shared);
	take_rules(flow);
	/* The cell completes the checksum by itself; a module below cannot. */
	if (!packet->key.ip_version)
		flow->outcome = config->bridge ? TAM_BRIDGED : packet->outcome;
	else if (!config->bridge && source_is_own(packet, config))
		flow->outcome = TAM_DROP_OWN_SOURCE;
	else if (config->flags & TAM_PORT_TC)
		flow->outcome = TAM_KERNEL_SLOW;	/* it is in the stack already */
#ifndef TAM_AT_TC
	else if ((flow->action == TAM_ACTION_FORWARD || flow->action == TAM_ACTION_SERVICE ||
		  flow->action == TAM_ACTION_OUT ||
		  config->bridge) &&
		 checksum_is_partial(ctx, packet))
		flow->outcome = TAM_KERNEL_PARTIAL;
	else
		flow->outcome = config->bridge ? TAM_BRIDGED : find_route(ctx, packet, config, flow);
#endif
	if (config->bridge) {
		flow->meta.egress_port = config->bridge - 1;
		flow->meta.flags |= TAM_META_BRIDGED;
	} else if (packet->key.ip_version && packet->key.vlan &&
		   is_of_unknown_vlan(config->ifindex, packet->key.vlan)) {
		flow->meta.egress_vlan = TAM_VLAN_UNKNOWN;	/* no such frame has a route */
	}
	/* A neighbour is being resolved and a packet that was too big says nothing
	 * of the next one: ask again. */
	if (flow->outcome != TAM_KERNEL_NEIGHBOUR && flow->outcome != TAM_KERNEL_TOO_BIG)
		flow->generation = generation;
}

#endif
