// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0
/* Receiver of a benchmark that waits for one frame: the first with a given word in it.
 * Records when that arrived, and the pause before it, and drops every frame.
 *
 * One receive queue, so one CPU at a time is here: nothing needs to be atomic. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

const volatile __u32 mark_at = 42;	/* offset of the word in the frame */

/* Words of the reader and of this program: `struct Words` in first.rs. */
struct words {
	__u64 wanted;		/* set by the reader; 0: none */
	__u64 came_ns;		/* arrival of the first frame with it; set to 0 by the reader */
	__u64 gap_ns;		/* pause before that frame */
	__u64 before_ns;	/* arrival of the last frame of any kind */
	__u64 packets;		/* number of frames of any kind */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct words);
} words SEC(".maps");

SEC("xdp.frags")
int wait_for(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 zero = 0, *mark = data + mark_at;
	struct words *found = bpf_map_lookup_elem(&words, &zero);
	__u64 now = bpf_ktime_get_ns();

	if (!found || (void *)(mark + 1) > end)
		return XDP_DROP;
	if (*mark && *mark == *(volatile __u64 *)&found->wanted && !found->came_ns) {
		found->gap_ns = now - found->before_ns;
		*(volatile __u64 *)&found->came_ns = now;
	}
	found->before_ns = now;
	found->packets++;
	return XDP_DROP;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
