/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Rules of a packet, by tuple-space search: the rules of each set of matched fields (mask) are one
 * exact lookup in a hash, masks are tried in the order of their best rule. There are two rule sets;
 * bit 0 of the generation selects the active one, so that a change becomes visible with one store.
 *
 *   packet --> track_fragment: protocol and L4 ports of a later fragment's first one
 *          --> find_hidden: rules that may match, if it does not show all of L4
 *          --> find_rule --> take_rules --> struct tam_flow
 *
 */
#ifndef TAM_SEARCH_H
#define TAM_SEARCH_H

#include "flow.h"

/* Ranges of masks: those for shown fields, then those for packets that do not show all of
 * L4. */
enum tam_range {
	TAM_RANGE_SHOWN = 0,
	TAM_RANGE_HIDDEN = 1,
};

/* Records protocol and L4 ports of a first fragment for the later ones, or that they are
 * hidden. One that comes before its first is matched without them. */
__noinline int track_fragment(struct packet *packet)
{
	if (!packet)
		return 0;

	__u32 zero = 0;
	struct tam_scratch *scratch = bpf_map_lookup_elem(&tam_scratch, &zero);

	if (!scratch)
		return 0;	/* the map has every index: not reached */

	struct tam_datagram *datagram = &scratch->datagram;

	datagram->id = packet->fragment_id;
	datagram->protocol = packet->key.ip_version == 4 ? packet->key.protocol : 0;
	datagram->ip_version = packet->key.ip_version;
	__builtin_memcpy(datagram->source, packet->key.source, 16);
	__builtin_memcpy(datagram->destination, packet->key.destination, 16);
	if (packet->key.fragment == TAM_FRAGMENT_FIRST) {
		scratch->ports.source_be = packet->key.source_port_be;
		scratch->ports.destination_be = packet->key.destination_port_be;
		scratch->ports.protocol = packet->key.protocol;
		scratch->ports.hidden = packet->key.hidden;
		scratch->ports.zero = 0;
		bpf_map_update_elem(&tam_fragments, datagram, &scratch->ports, BPF_ANY);
		return 0;
	}

	struct tam_l4_ports *first = bpf_map_lookup_elem(&tam_fragments, datagram);

	if (first) {
		packet->key.source_port_be = first->source_be;
		packet->key.destination_port_be = first->destination_be;
		packet->key.protocol = first->protocol;
		packet->key.hidden = first->hidden;
	}
	return 0;
}

/* Computes the hash of a masked key, which is stored in `to`: the sum of its 32-bit
 * words, each times a secret factor (hash_of), starting with the mask's salt. Words in
 * which the mask has no bits are left out. */
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

/* Looks a key up in the flow list of a mask. */
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

/* Adds the best rule of a stage to a flow, behind those of the stages before. */
static __always_inline void add_rule(struct tam_flow *flow, const struct tam_rule *rule)
{
	__u16 number = rule->rule;

	if (flow->action == TAM_ACTION_DROP || flow->action == TAM_ACTION_OUT)
		return;		/* the packet does not reach this stage */
	if (rule->action != TAM_ACTION_FORWARD && flow->action == TAM_ACTION_FORWARD) {
		number = flow->meta.rule;	/* the rule only counts */
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

/* Returns true if a mask matches on fields that a packet does not show. */
static __always_inline int looks_at_hidden(const struct tam_key *bits, __u32 hidden)
{
	return (hidden >= TAM_HIDDEN_FLAGS && bits->tcp_flags) ||
	       (hidden >= TAM_HIDDEN_PORTS && (bits->source_port_be | bits->destination_port_be)) ||
	       (hidden >= TAM_HIDDEN_PROTOCOL && bits->protocol);
}

/* Masks that are tried in one call: a return costs as much as a mask where the kernel
 * guards it against speculation, and the verifier walks through each. */
#define TAM_MASKS_TOGETHER 8

/* State of a search, shared by its masks. */
struct search {
	struct tam_scratch *scratch;
	const struct tam_config *shared;
	__u16 set;
	__u16 range;
	__u32 count;		/* masks of the range */
};

/* Tries a mask of the range. Returns 1 when no better rule can follow. */
static __always_inline int try_mask(__u32 number, struct search *search)
{
	struct tam_scratch *scratch = search->scratch;
	const struct tam_key *shown = &scratch->packet.key;
	__u32 at = search->set * TAM_MASKS_ALL + number;

	if (search->range == TAM_RANGE_HIDDEN)
		at += TAM_MASKS_MAX;

	struct tam_mask *mask = bpf_map_lookup_elem(&tam_masks, &at);

	if (!mask || mask->stage >= TAM_STAGES)
		return 1;	/* not reached */

	struct tam_rule *best = &scratch->best[search->range & 1][mask->stage];

	if (best->rank < mask->rank_best)
		return !!mask->alone;
	/* A frame that is not IP matches only rules that name its ethertype. */
	if (!shown->ip_version && !mask->bits.ethertype_be)
		return 0;
	if (shown->hidden && looks_at_hidden(&mask->bits, shown->hidden))
		return 0;

	struct tam_key *key = &scratch->key;
	__u64 hash = mask_key((const __u64 *)shown, mask, (__u64 *)key, search->shared->hash_keys);
	struct tam_rule *rule;

	if (mask->list) {
		rule = find_listed(mask, key);
	} else if (may_be_there(search->set, hash)) {
		key->mask = at - search->set * TAM_MASKS_ALL;
		rule = search->set ? bpf_map_lookup_elem(&tam_rules_1, key)
				   : bpf_map_lookup_elem(&tam_rules_0, key);
	} else {
		return 0;
	}
	if (rule && rule->rank < best->rank)
		*best = *rule;
	return 0;
}

/* Tries the masks of a group, a callback of bpf_loop(). Returns 1 to end the search. */
static long try_masks(__u32 group, struct search *search)
{
	for (__u32 at = 0; at < TAM_MASKS_TOGETHER; at++) {
		__u32 number = group * TAM_MASKS_TOGETHER + at;

		if (number >= search->count || try_mask(number, search))
			return 1;
	}
	return 0;
}

/* Finds the best rules of a set, one of each stage, into the scratch's best[range]: those
 * that match, or (TAM_RANGE_HIDDEN) may match, by the shown fields. With bpf_loop() the
 * verifier walks through a group of masks once, and not through all: loading takes a
 * sixth. */
static __always_inline int find_in(enum tam_range range, __u32 set, const struct tam_config *shared)
{
	if (!shared)
		return 0;

	__u32 zero = 0, most = range == TAM_RANGE_HIDDEN ? TAM_HIDDEN_MASKS_MAX : TAM_MASKS_MAX;
	struct search search = {
		.scratch = bpf_map_lookup_elem(&tam_scratch, &zero),
		.shared = shared,
		.set = set & 1,
		.range = range,
	};

	if (!search.scratch)
		return 0;	/* the map has every index: not reached */
	for (int stage = 0; stage < TAM_STAGES; stage++)
		search.scratch->best[range][stage].rank = 0xffffffff;
	search.count = range == TAM_RANGE_HIDDEN ? shared->hidden_count[set & 1] : shared->mask_count[set & 1];
	bpf_loop(most / TAM_MASKS_TOGETHER, try_masks, &search, 0);
	return 0;
}

/* Searches both ranges. Functions that are not static are verified once, and not for each
 * path to them: all together would exceed the verifier's limit. */
__noinline int find_rule(__u32 set, const struct tam_config *shared)
{
	return find_in(TAM_RANGE_SHOWN, set, shared);
}

__noinline int find_hidden(__u32 set, const struct tam_config *shared)
{
	return find_in(TAM_RANGE_HIDDEN, set, shared);
}

/* Copies the rules that were found into `flow`. Returns not 0 when one that may be better
 * than one of them needs fields that the packet does not show. */
__noinline int take_rules(const struct packet *packet, struct tam_flow *flow)
{
	__u32 zero = 0;
	struct tam_scratch *scratch = bpf_map_lookup_elem(&tam_scratch, &zero);

	if (!packet || !flow)
		return 0;
	flow->meta.rule = TAM_RULE_NONE;
	flow->meta.then[0] = TAM_RULE_NONE;
	flow->meta.then[1] = TAM_RULE_NONE;
	flow->meta.entry = 0;
	flow->counted[0] = TAM_RULE_NONE;
	flow->counted[1] = TAM_RULE_NONE;
	flow->action = TAM_ACTION_FORWARD;
	if (!scratch)
		return 0;	/* the map has every index: not reached */
	for (int stage = 0; stage < TAM_STAGES; stage++) {
		const struct tam_rule *best = &scratch->best[TAM_RANGE_SHOWN][stage];

		if (packet->key.hidden && scratch->best[TAM_RANGE_HIDDEN][stage].rank < best->rank &&
		    flow->action != TAM_ACTION_DROP && flow->action != TAM_ACTION_OUT) {
			flow->action = TAM_ACTION_FORWARD;	/* it may match none of them: it is dropped */
			return 1;
		}
		if (best->rank != 0xffffffff)
			add_rule(flow, best);
	}
	return 0;
}

#endif
