// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0
/* Front door at tc with taps, as tapped_door.bpf.c is the one in the driver. */
#define TAM_TAPPED
#include "tc_door.bpf.c"

/* Captures packets that leave by the kernel's stack. */
SEC("tcx/egress")
int tam_tap_egress(struct __sk_buff *skb)
{
	return tap_egress(skb);
}
