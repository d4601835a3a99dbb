/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Redirect cycles: frames that modules send round and round between cabled ports.
 *
 *              redirect       cable       redirect       cable
 *   ──▶ port c ─────────▶ a ═════════▶ b ─────────▶ a ═════════▶ b ──▶ ... dropped
 *       + 64 rounds                      - 1 round                  no round left
 *
 * `redirect` and `bounce` do not decrement the TTL, so nothing else would end a cycle. A
 * frame cannot carry a hop count: the counter is chosen by a hash of the frame's first
 * bytes. A frame that arrives by another port adds rounds; one that arrives by a cabled
 * port has completed a round and costs one. Frames with the same hash share a counter, and
 * frames that the stack sent out by a cable added nothing: so each heartbeat restores
 * TAM_CYCLE_ROUNDS, which a cycle uses up long before the next.
 *
 * Only packets sent out of a cabled port (TAM_PORT_CABLED) pay for this. node/cell's
 * cycle.rs does the same at user level.
 *
 */
#ifndef TAM_CYCLE_H
#define TAM_CYCLE_H

#include "classify.h"
#include "context.h"

/* Number of the last heartbeat that restored rounds in the upper half, remaining rounds
 * in the lower. Shared by all CPUs: a frame returns on another one. Racing writes may
 * lose some rounds, which makes a cycle a little longer or shorter. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TAM_CYCLES_MAX);
	__type(key, __u32);
	__type(value, __u64);
} tam_cycles SEC(".maps");

/* Returns true if a frame for a cabled port, which arrived by `arrival`, has no round
 * left. */
static __always_inline int is_worn_out(void *ctx, enum tam_level level, __u32 arrival)
{
	__u64 head[TAM_KEY_WORDS] = {};
	__u32 at = 0, length = frame_length(ctx, level);
	struct tam_config *shared = bpf_map_lookup_elem(&tam_shared, &at);
	struct tam_port_config *from = bpf_map_lookup_elem(&tam_ports, &arrival);

	if (length > sizeof(head))
		length = sizeof(head);
	if (!shared || !from || !length)
		return 0;
	if (level == TAM_LEVEL_NIC ? bpf_xdp_load_bytes(ctx, 0, head, length)
				   : bpf_skb_load_bytes(ctx, 0, head, length))
		return 0;
	at = hash_of(head, shared->hash_keys) >> 52 & (TAM_CYCLES_MAX - 1);

	volatile __u64 *kept = bpf_map_lookup_elem(&tam_cycles, &at);

	if (!kept)
		return 0;

	__u64 found = *kept, beat = *(volatile __u64 *)&shared->routes_heard << 32;
	__u32 rounds = found;

	if ((found ^ beat) >> 32 && rounds < TAM_CYCLE_ROUNDS)
		rounds = TAM_CYCLE_ROUNDS;
	if (!(from->flags & TAM_PORT_CABLED)) {
		if (rounds < TAM_CYCLE_ROUNDS_MAX)
			rounds += TAM_CYCLE_ROUNDS;
	} else if (rounds) {
		rounds--;
	} else {
		return 1;
	}
	*kept = beat | rounds;
	return 0;
}

static __noinline int worn_out_nic(struct xdp_md *ctx, __u32 arrival)
{
	return is_worn_out(ctx, TAM_LEVEL_NIC, arrival);
}

static __noinline int worn_out_tc(struct __sk_buff *ctx, __u32 arrival)
{
	return is_worn_out(ctx, TAM_LEVEL_KERNEL, arrival);
}

/* Returns true if a frame circles by this port, and must be dropped here. */
static __always_inline int cycles(void *ctx, enum tam_level level,
				  const struct tam_port_config *port, __u32 arrival)
{
	if (!port || !(port->flags & TAM_PORT_CABLED))
		return 0;
	return level == TAM_LEVEL_NIC ? worn_out_nic(ctx, arrival) : worn_out_tc(ctx, arrival);
}

#endif
