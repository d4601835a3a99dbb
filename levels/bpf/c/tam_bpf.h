/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Common header of every BPF program here: kernel types and helpers. */
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

/* Hides the origin of a value, so that clang keeps a bounds check which it can prove and
 * the verifier cannot, or computes a value where it is used and not ahead, on the stack. */
#define hide(value) asm volatile("" : "+r"(value))

/* Copies words, each before the next is loaded: memcpy() would become loads of all of them, and the
 * stack has no room for what the registers do not hold. */
#define copy_words(to, from, words)                              \
	do {                                                         \
		_Pragma("unroll") for (int word = 0; word < (words); word++) { \
			(to)[word] = (from)[word];                           \
			asm volatile("" ::: "memory");                       \
		}                                                        \
	} while (0)

/* Context of the front door: a frame in the driver, or a socket buffer (tc_door.bpf.c).
 * Both have their first bytes between data and data_end. */
#ifdef TAM_AT_TC
typedef struct __sk_buff tam_context;

static __always_inline __u32 whole_length(const tam_context *ctx)
{
	return ctx->len;
}
#else
typedef struct xdp_md tam_context;

static __always_inline __u32 whole_length(tam_context *ctx)
{
	return bpf_xdp_get_buff_len(ctx);
}
#endif

struct vlan_header {
	__be16 tci_be;
	__be16 ethertype_be;
};

#endif
