/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Packet to flow, for the front door in the driver and at tc. The including file defines before:
 *
 *   have_come()   counts a packet that has been parsed
 *   act()         acts by its flow's rule and route
 *   act_unread()  handles a packet that cannot be classified
 *
 */
#ifndef TAM_DOOR_H
#define TAM_DOOR_H

#include "large_cache.h"

static __always_inline int is_fresh(const struct tam_flow *flow, const struct tam_config *shared,
				    __u64 generation)
{
	return flow->generation == generation &&
	       bpf_jiffies64() - *(volatile __u64 *)&shared->routes_heard < TAM_ROUTES_LEASE;
}

/* Returns true if rules apply to a frame that cannot be classified as IP: one names an
 * ethertype, and this frame was parsed up to its own. */
static __always_inline int is_named(const struct packet *packet, __u64 generation)
{
	return generation & TAM_GENERATION_ETHERTYPES && packet->outcome;
}

/* Handles any frame: parses it, then looks it up by its match key. `common_key` is the
 * key of a common frame that the cache lacks; of another frame its word 5 is 0. */
__noinline int take_apart(tam_context *ctx, const struct common_key *common_key,
			  struct tam_port_stats *stats, __u64 generation)
{
	__u32 at = 0;	/* one register for all keys */
	struct tam_scratch *scratch = bpf_map_lookup_elem(&tam_scratch, &at);

	at = port_number;

	struct tam_port_config *config = bpf_map_lookup_elem(&tam_ports, &at);

	if (!common_key || !stats || !config || !scratch)
		return XDP_PASS;	/* the maps have every index: not reached */

	struct packet *packet = &scratch->packet;
	int outcome;

	__builtin_memset(packet, 0, sizeof(*packet));
	outcome = parse(ctx, config, packet);
	have_come(ctx, packet, packet->key.protocol, stats);
	at = 0;

	struct tam_config *shared = bpf_map_lookup_elem(&tam_shared, &at);
	struct tam_flow *flow;

	if (!shared)
		return XDP_PASS;	/* not reached */
	/* Linux may strip any number of tags, and so receive a frame that no rule was
	 * applied to. */
	if (outcome == TAM_KERNEL_VLAN_DEPTH && shared->mask_count[generation & 1])
		return finish(stats, TAM_DROP_VLAN_DEPTH);
	if (outcome >= 0 && !is_named(packet, generation))
		return act_unread(ctx, stats, outcome);
	packet->key.port = port_number;
	packet->key.tcp_flags = packet->tcp_flags & generation >> TAM_GENERATION_FLAGS;
	if (packet->key.fragment && shared->mask_count[generation & 1])
		track_fragment(packet);

	const __u64 *key = common_key->words;
	int words = key[5] ? TAM_COMMON_WORDS : TAM_KEY_WORDS;
	__u64 hash;

	if (words == TAM_COMMON_WORDS) {
		hash = common_hash(key, shared->hash_keys);
	} else {
		key = (const __u64 *)&packet->key;
		hash = hash_of(key, shared->hash_keys);
	}
	hide(key);

	at = slot_of(hash);
	flow = bpf_map_lookup_elem(&tam_flows, &at);
	if (!flow)
		return finish(stats, TAM_KERNEL_OTHER);

	int hit = is_flow(flow, key, words) && is_fresh(flow, shared, generation);

	if (!hit && large_sets) {
		struct tam_flow *large = find_large(hash, key, words);

		if (!large) {
			large = take_large(hash, generation);
		} else if (is_fresh(large, shared, generation)) {
			promote(flow, large, stats);
			hit = 1;
		}
		if (large)
			flow = large;
	}
	if (hit) {
		stats->cache_hits++;
	} else {
		copy_words(flow->key, (const __u64 *)&packet->key, TAM_KEY_WORDS);
		if (words == TAM_COMMON_WORDS)
			copy_words(flow->key, key, TAM_COMMON_WORDS);
		resolve(ctx, packet, shared, flow, generation);
	}
	return act(ctx, packet, flow, stats);
}

/* Looks a packet up and acts on it; returns the result of act() or act_unread(). */
static __always_inline int look_up(tam_context *ctx, struct tam_port_stats *stats,
				   const struct tam_config *shared, struct common_key *common,
				   __u32 *at)
{
	struct packet packet;
	__u64 *key = common->words;

	/* Read once: a packet meets the rules of one generation and no others. */
	__u64 generation = *(volatile __u64 *)&shared->generation;

	if (take_every_frame_apart ||
	    !parse_common(ctx, &packet, generation >> TAM_GENERATION_FLAGS, key)) {
		key[5] = 0;
		goto other;
	}

	__u64 hash = common_hash(key, shared->hash_keys);

	*at = slot_of(hash);

	struct tam_flow *flow = bpf_map_lookup_elem(&tam_flows, at);

	if (!flow)
		goto other;
	if (!same_common(flow->key, key) || !is_fresh(flow, shared, generation)) {
		struct tam_flow *large = large_sets ? find_large(hash, key, TAM_COMMON_WORDS) : 0;

		if (!large || !is_fresh(large, shared, generation))
			goto other;
		promote(flow, large, stats);
		flow = large;
	}
	have_come(ctx, &packet, key[2] >> 56, stats);
	stats->cache_hits++;
	return act(ctx, &packet, flow, stats);
other:
	return take_apart(ctx, common, stats, generation);
}

#endif
