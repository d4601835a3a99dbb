// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0
/* Receiver of a benchmark: counts every frame on the CPU where it arrives and drops it.
 * "pass" also counts, and lets the kernel have the frame: a device at the far end of a
 * redirect needs a program to take XDP frames at all. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct sink_count {
	__u64 packets;
	__u64 bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sink_count);
} counts SEC(".maps");

static void count(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct sink_count *counter = bpf_map_lookup_elem(&counts, &zero);

	if (!counter)
		return;
	counter->packets++;
	counter->bytes += ctx->data_end - ctx->data;
}

SEC("xdp.frags")
int drop(struct xdp_md *ctx)
{
	count(ctx);
	return XDP_DROP;
}

SEC("xdp.frags")
int pass(struct xdp_md *ctx)
{
	count(ctx);
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
