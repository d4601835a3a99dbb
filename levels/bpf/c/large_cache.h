/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Large flow cache: behind the small one (tam_flows), for many flows.
 *
 * A flow may be in one of two sets of TAM_FLOW_WAYS entries, selected by its hash, and
 * has a home in the first: two of three flows are there, and are found with a single cache
 * miss. A set's tags, one byte of each entry's hash, are one word; elsewhere
 * entries are read only where the tag is the same. The tags of a million flows are a
 * megabyte, their entries, of two cache lines each, more than a hundred.
 *
 *   hash ─┬─▶ home ──────────────────────────────┐
 *         ├─▶ set 1 ─▶ tam_tags[CPU][set 1] = tag tag tag tag tag tag tag tag
 *         └─▶ set 2 ─▶ tam_tags[CPU][set 2]        │ same
 *                                                  ▼
 *                      tam_large[CPU][set * 8 + way] = struct tam_flow
 *
 * A new flow takes its home, if that is free or of another generation, or an entry of the
 * set that has more free ones; when there is none, a random one of the second set, or one
 * after it that is stale.
 * Entries are valid while their generation is (is_fresh), so that a change of rules or
 * routes empties this cache as it empties the small one. A flow that is found here
 * is copied into the small one at every TAM_PROMOTE-th packet of its CPU: frequent
 * flows are there soon, and a flood of one-packet flows changes little there.
 *
 */
#ifndef TAM_LARGE_CACHE_H
#define TAM_LARGE_CACHE_H

#include "classify.h"

#define TAM_PROMOTE 8
#define TAM_BYTES (~0ULL / 255)	/* 0x0101...01 */

/* Sets of each CPU's part; 0: the node has no large cache. Set before loading. */
const volatile __u32 large_sets = 0;

static __always_inline __u32 set_at(__u32 hash)
{
	return (__u64)hash * large_sets >> 32;
}

/* Returns the bytes of `tags` that are zero, as their upper bits. Bytes above a zero one
 * may be marked, too: the caller compares the key. */
static __always_inline __u64 zero_bytes(__u64 tags)
{
	return (tags - TAM_BYTES) & ~tags & (TAM_BYTES << 7);
}

static __always_inline __u32 count_bytes(__u64 marked)
{
	return (marked >> 7) * TAM_BYTES >> 56;
}

/* Returns the number of the lowest marked byte. */
static __always_inline __u32 first_byte_of(__u64 marked)
{
	__u64 below = ((marked & -marked) - 1) & TAM_BYTES;

	return (below * TAM_BYTES >> 56) - 1;
}

static __always_inline struct tam_flow *large_flow(__u32 set, __u32 way)
{
	__u32 at = set * TAM_FLOW_WAYS + (way & (TAM_FLOW_WAYS - 1));
	struct tam_large_flow *large = bpf_map_lookup_elem(&tam_large, &at);

	return large ? &large->flow : 0;
}

static __always_inline int is_flow(const struct tam_flow *flow, const __u64 *key, int words)
{
	const __u64 *own = flow->key;

	return same_common(own, key) &&
	       (words == TAM_COMMON_WORDS || !((own[6] ^ key[6]) | (own[7] ^ key[7])));
}

static __always_inline __u32 second_hash(__u32 hash)
{
	hash = (hash ^ hash >> 15) * 0x85ebca6b;
	return (hash ^ hash >> 13) * 0xc2b2ae35;
}

static __always_inline __u64 tag_of(__u32 hash)
{
	return hash & 0xff ? hash & 0xff : 1;	/* 0 is a free entry */
}

/* Returns the way of a flow's home in its first set. */
static __always_inline __u32 home_of(__u32 hash)
{
	return hash >> 8 & (TAM_FLOW_WAYS - 1);
}

/* Returns the entry of a key of TAM_COMMON_WORDS or TAM_KEY_WORDS words, or 0.
 *
 * Which of the two sets has it is chance, and a branch on it would be mispredicted every
 * second time, while the tags are still being loaded: so the path to the first entry with
 * this tag is branch-free. Where that is another flow's, the others are examined. */
static __noinline struct tam_flow *find_large(__u64 hash, const __u64 *key, int words)
{
	__u32 upper = hash >> 32, base = bpf_get_smp_processor_id() * large_sets;
	__u32 first = base + set_at(upper), second = base + set_at(second_hash(upper));
	__u64 *one = bpf_map_lookup_elem(&tam_tags, &first);
	__u64 *other = bpf_map_lookup_elem(&tam_tags, &second);
	__u64 tag = tag_of(upper) * TAM_BYTES, in_one, in_other, none;
	struct tam_flow *flow;

	if (!one || !other)
		return 0;	/* the loader sized the map for each CPU: not reached */
	flow = large_flow(first, home_of(upper));
	if (flow && is_flow(flow, key, words))
		return flow;
	in_one = zero_bytes(*one ^ tag);
	in_other = zero_bytes(*other ^ tag);
	for (int try = 0; try < 4; try++) {
		/* All ones when the first set has none. */
		none = ((in_one | -in_one) >> 63) - 1;
		if (!(in_one | in_other))
			return 0;
		flow = large_flow(first + ((second - first) & (__u32)none),
				  first_byte_of(in_one | (in_other & none)));
		if (flow && is_flow(flow, key, words))
			return flow;
		in_other &= in_other - (none & 1);
		in_one &= in_one - 1;
	}
	return 0;
}

#define TAM_TRIES 3	/* entries that are examined for one of another generation */

/* Returns a random way of a full set, or the next one that is stale. */
static __always_inline __u32 way_to_lose(__u32 set, __u64 generation)
{
	__u32 way = bpf_get_prandom_u32();

	for (int try = 0; try < TAM_TRIES; try++) {
		struct tam_flow *flow = large_flow(set, way + try);

		if (flow && flow->generation != generation)
			return (way + try) & (TAM_FLOW_WAYS - 1);
	}
	return way & (TAM_FLOW_WAYS - 1);
}

/* Takes an entry for a flow that has none. */
static __noinline struct tam_flow *take_large(__u64 hash, __u64 generation)
{
	__u32 upper = hash >> 32, base = bpf_get_smp_processor_id() * large_sets;
	__u32 first = base + set_at(upper), second = base + set_at(second_hash(upper)), way;
	__u64 *one = bpf_map_lookup_elem(&tam_tags, &first);
	__u64 *other = bpf_map_lookup_elem(&tam_tags, &second);

	if (!one || !other)
		return 0;	/* the loader sized the map for each CPU: not reached */

	__u64 free_one = zero_bytes(*one), free_other = zero_bytes(*other);
	struct tam_flow *home = large_flow(first, home_of(upper));

	/* An entry of another generation in its home is dropped. */
	way = home_of(upper);
	if (*one >> 8 * way & 0xff && home && home->generation == generation) {
		if (count_bytes(free_one) <= count_bytes(free_other) || !free_one) {
			one = other;
			free_one = free_other;
			first = second;
		}
		way = free_one ? first_byte_of(free_one) : way_to_lose(first, generation);
	}
	*one = (*one & ~(0xffULL << 8 * way)) | tag_of(upper) << 8 * way;
	return large_flow(first, way);
}

/* Copies a flow into the small cache, at some packets. */
static __always_inline void promote(struct tam_flow *small, const struct tam_flow *large,
				    const struct tam_port_stats *stats)
{
	if (stats->rx_packets % TAM_PROMOTE == 0)
		copy_words((__u64 *)small, (const __u64 *)large, sizeof(*small) / 8);
}

#endif
