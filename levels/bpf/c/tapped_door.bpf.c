// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0
/* The front door with taps: what takes its place on a port while somebody captures.
 *
 * The same source with the macros of tap.h filled in. Without a capture there is no
 * trace of them: the front door itself is compiled without.
 */
#define TAM_TAPPED
#include "front_door.bpf.c"

/* What leaves by the kernel's stack. */
SEC("tcx/egress")
int tam_tap_egress(struct __sk_buff *skb)
{
	return tap_egress(skb);
}
