// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0
/* Fixtures for the tests of the safe layer: one map of each kind that the layer treats
 * differently, a constant that is set before loading, and programs that use them. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct pair {
	__u64 first;
	__u32 second;
	__u32 zero;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct pair);
} pairs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);	/* below 8 bytes: the kernel pads it */
} counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, struct pair);
} shared SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
} devices SEC(".maps");

const volatile __u32 answer = XDP_DROP;
__u64 added;

/* Returns a configured value, and counts in each kind of map. */
SEC("xdp")
int counted(struct xdp_md *ctx)
{
	__u32 zero = 0, one = 1;
	__u32 *count = bpf_map_lookup_elem(&counts, &zero);
	struct pair *pair = bpf_map_lookup_elem(&shared, &one);

	if (count)
		++*count;
	if (pair)
		pair->first += ctx->data_end - ctx->data;
	added++;
	return answer;
}

/* Reads through an unchecked pointer: the verifier refuses it. */
SEC("?xdp")
int refused(struct xdp_md *ctx)
{
	return *(__u8 *)(long)ctx->data;
}

SEC("?xdp")
int redirected(struct xdp_md *ctx)
{
	return ctx->rx_queue_index ? bpf_redirect_map(&sockets, 0, XDP_PASS)
				   : bpf_redirect_map(&devices, 1, XDP_PASS);
}

SEC("?raw_tp/xdp_devmap_xmit")
int transmitted(void *ctx)
{
	added++;
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
