// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0
/* Receiver of a benchmark that examines every frame: which arrived, in which order, how
 * often, and after which delay. Drops them all.
 *
 * One receive queue, so one CPU at a time is here: nothing needs to be atomic. A program
 * serves one generator: numbers begin at 0 and are seen once. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "stamp.h"

#define SEEN 262144	/* a power of two: frames within which a duplicate is found */
#define FLOWS_MAX 64
#define BUCKETS 640	/* histogram buckets, sixteen for each power of two of nanoseconds */
#define SERIES 65536	/* first frames whose own delays are kept */

/* Words of the reader and of this program: `struct Counts` in arrivals.rs. */
struct counts {
	__u64 from;		/* set by the reader: earlier numbers are ignored */
	__u64 packets;		/* first arrivals */
	__u64 doubled;
	__u64 reordered;	/* arrivals behind a later one of their flow */
	__u64 pause_ns;		/* longest pause since the reader set it to 0 */
	__u64 arrived_ns;	/* arrival of the previous frame */
	__u64 sent_ns;
};

const volatile __u32 stamp_at = 42;
const volatile __u32 flows = 1;	/* number of flows, as the generator's */
const volatile __u32 all_flows = 1;	/* a power of two: number of the generator's flows that come here */
const volatile __u32 others;		/* number of leading flows that are ignored */

#define MAPPED(name, entries, type_of_value)			\
	struct {						\
		__uint(type, BPF_MAP_TYPE_ARRAY);		\
		__uint(map_flags, BPF_F_MMAPABLE);		\
		__uint(max_entries, entries);			\
		__type(key, __u32);				\
		__type(value, type_of_value);			\
	} name SEC(".maps")

MAPPED(counts, 1, struct counts);
MAPPED(delays, BUCKETS, __u64);		/* a histogram of nanoseconds */
MAPPED(series, SERIES, __u64);		/* delay of each frame in nanoseconds, by number from `from` on */
MAPPED(by_flow, FLOWS_MAX, __u64);	/* first arrivals by flow */
MAPPED(newest, FLOWS_MAX, __u64);	/* number of the last one in order, plus 1 */
MAPPED(seen, SEEN, __u64);		/* number, plus 1 */

static __always_inline __u32 bucket(__u64 ns)
{
	__u32 power = 4;

	if (ns < 16)
		return ns;
	for (__u32 step = 32; step; step >>= 1)
		if (ns >> (power + step))
			power += step;
	__u32 at = (power - 3) * 16 + (ns >> (power - 4) & 15);

	return at < BUCKETS ? at : BUCKETS - 1;
}

/* Records how much longer the pause before this frame is than it was at the source. */
static __always_inline void note_pause(struct counts *counts, const struct stamp *stamp, __u64 now)
{
	__s64 pause = (now - counts->arrived_ns) - (stamp->sent_ns - counts->sent_ns);

	if (counts->arrived_ns && pause > (__s64)counts->pause_ns)
		counts->pause_ns = pause;
	counts->arrived_ns = now;
	counts->sent_ns = stamp->sent_ns;
}

static __always_inline void add(void *map, __u32 key)
{
	__u64 *word = bpf_map_lookup_elem(map, &key);

	if (word)
		++*word;
}

static void look_at(struct counts *counts, const struct stamp *stamp)
{
	__u64 number = stamp->number, now = bpf_ktime_get_ns(), delay = now - stamp->sent_ns;
	__u32 slot = number & (SEEN - 1), flow = number & (flows - 1) & (FLOWS_MAX - 1);
	__u64 *before = bpf_map_lookup_elem(&seen, &slot);
	__u64 *last = bpf_map_lookup_elem(&newest, &flow);

	if (!before || !last)
		return;
	if (*before == number + 1) {
		counts->doubled++;
		return;
	}
	*before = number + 1;
	counts->packets++;
	add(&by_flow, flow);
	if (*last > number)
		counts->reordered++;
	else
		*last = number + 1;
	note_pause(counts, stamp, now);
	add(&delays, bucket(delay));

	__u32 at = number - counts->from < SERIES ? number - counts->from : SERIES;
	__u64 *place = bpf_map_lookup_elem(&series, &at);

	if (place)
		*place = delay;
}

SEC("xdp.frags")
int arrive(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct stamp *stamp = data + stamp_at;
	__u32 zero = 0;
	struct counts *words = bpf_map_lookup_elem(&counts, &zero);

	if ((void *)(stamp + 1) > end || stamp->magic != STAMP_MAGIC || !words)
		return XDP_DROP;
	if (stamp->number >= *(volatile __u64 *)&words->from &&
	    (stamp->number & (all_flows - 1)) >= others)
		look_at(words, stamp);
	return XDP_DROP;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
