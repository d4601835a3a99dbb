/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Shares of ports: the rate that sessions may send at by a port from below user level.
 *
 *   a module's packet leaves by a port with reserved shares
 *     ─▶ the account of its session there, or of all that have none
 *          ├─ a positive balance, and nothing waits: charges its bytes, and leaves
 *          └─ else  at nic:    dropped, counted for its service and in that account
 *                   at kernel: to the cell by the TAP device, where it waits for the share
 *                              (verdict.h); dropped when its session's queue is full
 *
 * At nic nothing can wait: a waiting packet would have to be copied. It is not raised to
 * its module at user level either, which has finished with it, and must not see it twice. Accounts
 * fill with the kernel's ticks, as those of time do (service.h). The cell charges its packets to
 * the same accounts, so a session has one share, wherever its packets leave from. While any packet
 * waits, those that follow queue behind it.
 *
 * A packet that a module leaves to the kernel to be routed is charged in the same way before the
 * kernel gets it, to the account of the port by which it will leave (egress.h): a share does not
 * depend on who sends the packet in the end.
 *
 * The node's own services (session 0) are not charged: they precede everybody's. Packets of the
 * stack itself, and plain forwarding, bypass all this.
 *
 */
#ifndef TAM_SHARE_H
#define TAM_SHARE_H

#include "classify.h"
#include "context.h"
#include "egress.h"
#include "service.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, TAM_LINES_MAX);
	__type(key, __u32);
	__type(value, struct tam_port_share);
} tam_lines SEC(".maps");

/* Account of a share, by port and session. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, TAM_LINES_MAX - TAM_PORTS_MAX);
	__type(key, __u32);
	__type(value, __u32);
} tam_line_of SEC(".maps");

/* Returns true if packets of the share wait in the cell, or are on their way there. */
static __always_inline int is_waited_in(const struct tam_port_share *share)
{
	return (__s64)(*(volatile __u64 *)&share->up[0] + *(volatile __u64 *)&share->up[1] -
		       *(volatile __u64 *)&share->gone) > 0;
}

/* Charges a packet to a share. Returns 0 on success; else 1 + the number of the account
 * that could not pay. */
static __noinline int pay_for_share(__u32 port, __u32 session, __u32 bytes, __u32 beside, int at_nic)
{
	__u32 key = port << 16 | session, *own = bpf_map_lookup_elem(&tam_line_of, &key);
	__u32 at = own ? *own : port;
	struct tam_port_share *share = bpf_map_lookup_elem(&tam_lines, &at);

	if (!share)
		return 0;
	fill_for_now(&share->account);
	if (*(volatile __s64 *)&share->account.left <= 0 || (!at_nic && is_waited_in(share))) {
		if (at_nic)
			__sync_fetch_and_add(&share->dropped[0], 1);
		return 1 + at;
	}
	__sync_fetch_and_add(&share->account.left, -((__s64)(bytes + beside) << TAM_FUEL_SHIFT));
	if (at_nic)
		__sync_fetch_and_add(&share->account.sent[0], bytes);
	else
		__sync_fetch_and_add(&share->account.sent[1], bytes);
	__sync_fetch_and_add(&share->account.packets, 1);
	return 0;
}

/* Charges a packet of the session for leaving by this port now. Returns 0 on success;
 * else 1 + the number of the account that is empty, or in which others wait. */
static __always_inline __u32 take_share(void *ctx, enum tam_level level, __u32 session, __u32 port)
{
	struct tam_port_config *config = bpf_map_lookup_elem(&tam_ports, &port);

	if (!config || !(config->flags & TAM_PORT_SHARES) || session == TAM_SESSION_SYSTEM)
		return 0;
	return pay_for_share(port, session, frame_length(ctx, level),
			    config->flags & TAM_PORT_RAW ? 0 : TAM_ETHERNET_REST,
			    level == TAM_LEVEL_NIC);
}

static __noinline __u32 egress_at_nic(struct xdp_md *ctx, __u32 l3, __u32 ifindex)
{
	return egress_of(ctx, TAM_LEVEL_NIC, l3, ifindex);
}

static __noinline __u32 egress_at_tc(struct __sk_buff *ctx, __u32 l3, __u32 ifindex)
{
	return egress_of(ctx, TAM_LEVEL_KERNEL, l3, ifindex);
}

/* Returns egress_of() of a packet that has just arrived. */
static __always_inline __u32 egress_at(void *ctx, enum tam_level level, __u32 l3)
{
	return level == TAM_LEVEL_NIC
		       ? egress_at_nic(ctx, l3, ((struct xdp_md *)ctx)->ingress_ifindex)
		       : egress_at_tc(ctx, l3, ((struct __sk_buff *)ctx)->ingress_ifindex);
}

/* Returns 1 + the number of the port by which the kernel would send a packet of the
 * session, if any session has a share of a port; else TAM_NO_EGRESS. */
static __always_inline __u32 shared_egress(void *ctx, enum tam_level level, __u32 session, __u32 l3)
{
	__u32 zero = 0;
	const struct tam_config *shared = bpf_map_lookup_elem(&tam_shared, &zero);

	if (!shared || !*(volatile __u32 *)&shared->shares || session == TAM_SESSION_SYSTEM)
		return TAM_NO_EGRESS;
	__u32 port = egress_at(ctx, level, l3);

	return port == TAM_ANSWERED ? TAM_NO_EGRESS : port;
}

#endif
