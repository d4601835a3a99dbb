/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* What every BPF program here includes: kernel types and helpers. */
#ifndef TAM_BPF_H
#define TAM_BPF_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define AF_INET 2
#define AF_INET6 10

/* Hides where a pointer comes from, so that clang keeps a bounds check which it
 * can prove and the verifier cannot. */
#define hide(pointer) asm volatile("" : "+r"(pointer))

struct vlan_header {
	__be16 tci_be;
	__be16 ethertype_be;
};

#endif
