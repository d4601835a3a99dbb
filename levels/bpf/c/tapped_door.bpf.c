// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0
/* Front door with taps: takes the place of the plain one on a port during a capture.
 *
 * The same source with the macros of tap.h filled in. Without a capture there is no trace
 * of them: the plain front door is compiled without.
 */
#define TAM_TAPPED
#include "front_door.bpf.c"

/* Captures packets that leave by the kernel's stack. */
SEC("tcx/egress")
int tam_tap_egress(struct __sk_buff *skb)
{
	return tap_egress(skb);
}
