/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* TCP connections that a stream service intercepts.
 *
 *   act() --> to_stream(): its rule is of a stream service
 *               v
 *             intercept(): a client's first packet, or one of a connection with a local socket?
 *               | yes: metadata in front, on to the stack --> tam_tc: the mark of the listener
 *               v no
 *             plain forwarding, as if there were no rule; or, while nobody listens and the service
 *             is closed, a drop
 *
 * A connection from before the rule continues past the service. Netfilter (TPROXY) delivers marked
 * packets: to the listener, or the socket that has their addresses. The kernel is queried for the
 * listener at each first packet, so that the end of a cell opens no closed service, even before
 * anybody notices it.
 *
 */
#ifndef TAM_INTERCEPT_H
#define TAM_INTERCEPT_H

#include "verdict.h"
#include "stream.h"

/* Gives a packet of a stream service's rule to the kernel's TCP, or forwards it. */
static __noinline int intercept(struct xdp_md *ctx)
{
	__u32 at = port_number;
	struct tam_port_stats *stats = bpf_map_lookup_elem(&tam_stats, &at);

	at = 0;

	struct tam_passage *passage = bpf_map_lookup_elem(&tam_passages, &at);

	if (!stats || !passage)
		return XDP_DROP;	/* not reached */

	enum tam_taken what = taken(ctx, passage);

	if (what == TAM_REFUSED)
		return finish(stats, TAM_DROP_DOWN);
	if (what == TAM_TAKEN) {
		struct tam_meta *meta = meta_in_front(ctx, 0);

		if (!meta)
			return finish(stats, TAM_DROP_ADJUST);
		__builtin_memset(meta, 0, sizeof(*meta));
		meta->entry = passage->meta.entry;
		meta->flags = TAM_META_INTERCEPT;
		return finish(stats, TAM_INTERCEPTED);
	}
	if (passage->program != TAM_FORWARDED)
		return finish(stats, passage->program);

	if (trim_behind(ctx) || hop(ctx, passage))
		return finish(stats, TAM_DROP_ADJUST);
	at = passage->meta.egress_port;
	TAP_LEAVES(at);
	if (bpf_redirect_map(&tam_devices, at, XDP_DROP) != XDP_REDIRECT)
		return finish(stats, TAM_DROP_EGRESS_GONE);
	finish(stats, TAM_FORWARDED);
	return XDP_REDIRECT;
}

#endif
