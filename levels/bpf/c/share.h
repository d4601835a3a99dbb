/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Shares of ports: what sessions may send by a port from below user level.
 *
 *   a module's packet leaves by a port of which somebody was promised a share
 *     ─▶ the account of its session there, or of all that have none
 *          ├─ something left: it pays its bytes, and leaves
 *          └─ nothing:        dropped, counted for its service and in that account
 *
 * It is dropped, not raised: its module is through with it, and must not see it twice. Accounts
 * fill with the kernel's ticks, as those of time do (service.h). What the cell sends pays from
 * the same ones, so a session has one share, wherever its packets leave from; the cell's own
 * wait for their turn, and are never dropped here.
 *
 * The node's own services (session 0) pay nothing: they are in everybody's way. What the stack
 * sends, and plain forwarding, passes by all this.
 */
#ifndef TAM_SHARE_H
#define TAM_SHARE_H

#include "classify.h"
#include "context.h"
#include "service.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, TAM_LINES_MAX);
	__type(key, __u32);
	__type(value, struct tam_account);
} tam_lines SEC(".maps");

/* By port and session: which of them is a share's. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, TAM_LINES_MAX - TAM_PORTS_MAX);
	__type(key, __u32);
	__type(value, __u32);
} tam_line_of SEC(".maps");

static __noinline int pay_for_line(__u32 port, __u32 session, __u32 bytes, __u32 beside)
{
	__u32 key = port << 16 | session, *own = bpf_map_lookup_elem(&tam_line_of, &key);
	__u32 at = own ? *own : port;
	struct tam_account *account = bpf_map_lookup_elem(&tam_lines, &at);

	if (!account)
		return 0;
	fill_for_now(account);
	if (*(volatile __s64 *)&account->left <= 0) {
		__sync_fetch_and_add(&account->dropped, 1);
		return -1;
	}
	__sync_fetch_and_add(&account->left, -((__s64)(bytes + beside) << TAM_FUEL_SHIFT));
	__sync_fetch_and_add(&account->sent, bytes);
	return 0;
}

/* Whether a packet of the entry that the way names may not leave by this port; else it has paid. */
static __always_inline int is_beyond_share(void *ctx, enum tam_level level, __u32 entry, __u32 port)
{
	struct tam_port_config *config = bpf_map_lookup_elem(&tam_ports, &port);
	__u32 session;

	if (!config || !(config->flags & TAM_PORT_SHARES))
		return 0;
	session = hand_over_of(entry)->session;
	if (session == TAM_SESSION_SYSTEM)
		return 0;
	return pay_for_line(port, session, frame_length(ctx, level),
			    config->flags & TAM_PORT_RAW ? 0 : TAM_ETHERNET_REST) < 0;
}

#endif
