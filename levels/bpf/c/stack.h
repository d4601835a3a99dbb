/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Packets that the node has left to the kernel and the kernel drops: their selection.
 *
 *   port --XDP_PASS, tc--> stack --> kfree_skb: skb, reason --> kind of the reason --> arrival
 *   cell --to a port's device---^      ^                                            |
 *   cell --TUN device----> stack ------+                                            |
 *                                                port's number, or TAM_STACK_OWN <--+
 *
 * The tracepoint is machine-wide: programs here see every buffer that the kernel drops
 * anywhere. Buffers that were not received (the arrival device is cleared between namespaces), and
 * reasons that do not count, end after two loads; then the network namespace is compared.
 *
 * Kernel types are declared as far as they are read; libbpf finds the members of the running
 * kernel's by their names.
 *
 */
#ifndef TAM_STACK_H
#define TAM_STACK_H

#include "ports.h"
#include <bpf/bpf_core_read.h>

#define KERNEL_TYPE __attribute__((preserve_access_index))

struct ns_common {
	unsigned int inum;
} KERNEL_TYPE;

struct net {
	struct ns_common ns;
} KERNEL_TYPE;

typedef struct {
	struct net *net;
} possible_net_t;

struct net_device {
	int ifindex;
	possible_net_t nd_net;
} KERNEL_TYPE;

struct sock_common {
	possible_net_t skc_net;
} KERNEL_TYPE;

struct sock {
	struct sock_common __sk_common;
} KERNEL_TYPE;

struct dst_entry {
	struct net_device *dev;
} KERNEL_TYPE;

struct skb_shared_info {
	unsigned short gso_segs;
} KERNEL_TYPE;

struct sk_buff {
	struct net_device *dev;
	int skb_iif;
	unsigned long _skb_refdst;
	unsigned int len;
	unsigned int data_len;
	__u32 mark;
	__be16 vlan_proto;
	__u16 vlan_tci;
	__be16 protocol;
	__u8 pkt_type : 3;
	__u16 network_header;
	__u16 mac_header;
	unsigned int end;
	unsigned char *head;
	unsigned char *data;
} KERNEL_TYPE;

#define SKB_DST_NOREF 1UL	/* in the lowest bit of _skb_refdst (include/linux/skbuff.h) */
#define PACKET_MULTICAST 2	/* value of pkt_type (include/uapi/linux/if_packet.h) */
#define TAM_ICMP_ECHO_REPLY 0	/* RFC 792 */
#define TAM_ICMPV6_ECHO_REPLY 129	/* RFC 4443, 4.2 */
#define SKB_MAC_HEADER_NOT_SET 0xffff	/* value of mac_header: ~0 */

/* Set before loading: the inode of the node's network namespace, and each reason's kind. */
const volatile __u32 stack_namespace = 0;
const volatile __u8 stack_kinds[TAM_STACK_REASONS_MAX] = {};

/* Returns the index of a reason's counter. Reasons of the kernel's modules have a number
 * range of their own (SKB_DROP_REASON_SUBSYS_MASK). */
static __always_inline __u32 reason_index(__u32 reason)
{
	__u32 at = reason < TAM_STACK_OTHER ? reason : TAM_STACK_OTHER;

	hide(at);
	return at & (TAM_STACK_REASONS_MAX - 1);
}

/* Returns true if a buffer belongs to the node's network namespace. A receiving socket
 * clears the device (TCP), or reuses the field (UDP): those read as no namespace. */
static __always_inline int is_here(const struct sk_buff *skb, const struct sock *receiver)
{
	const struct net_device *device = skb->dev;
	const struct dst_entry *route;

	if (device && device->nd_net.net->ns.inum == stack_namespace)
		return 1;
	if (receiver)
		return receiver->__sk_common.skc_net.net->ns.inum == stack_namespace;
	route = (const void *)(skb->_skb_refdst & ~SKB_DST_NOREF);
	return route && BPF_CORE_READ(route, dev, nd_net.net, ns.inum) == stack_namespace;
}

/* Returns true if a buffer is on its way out of a device, with its link header in front
 * again. */
static __always_inline int is_sent(const struct sk_buff *skb)
{
	return skb->mac_header < skb->network_header && skb->data == skb->head + skb->mac_header;
}

/* Returns true if a buffer is IPv6 multicast: without a listener here it ends without a
 * reason (ip6_mc_input, net/ipv6/ip6_input.c), and every link has such packets, as
 * reports of MLD. */
static __always_inline int is_multicast_v6(const struct sk_buff *skb)
{
	return skb->protocol == bpf_htons(ETH_P_IPV6) &&
	       BPF_CORE_READ_BITFIELD(skb, pkt_type) == PACKET_MULTICAST;
}

/* Returns true if a buffer is an ICMP echo reply: raw sockets (those of ping, say) have
 * copies of it, and the original finds none of the other kind (ping_rcv,
 * net/ipv4/ping.c). */
static __always_inline int is_echo_reply(const struct sk_buff *skb)
{
	const unsigned char *ip = skb->head + skb->network_header;
	__u8 header[10], type;

	if (bpf_probe_read_kernel(header, sizeof(header), ip))
		return 0;
	if (header[0] >> 4 == 4)
		return header[9] == IPPROTO_ICMP &&
		       !bpf_probe_read_kernel(&type, 1, ip + (header[0] & 0xf) * 4) &&
		       type == TAM_ICMP_ECHO_REPLY;
	return header[0] >> 4 == 6 && header[6] == IPPROTO_ICMPV6 &&
	       !bpf_probe_read_kernel(&type, 1, ip + sizeof(struct ipv6hdr)) &&
	       type == TAM_ICMPV6_ECHO_REPLY;
}

/* Returns true if a buffer dropped for a reason of this kind counts. */
static __always_inline int counts(const struct sk_buff *skb, enum tam_stack_kind kind,
				  __u32 arrival, const struct sock *receiver)
{
	const struct tam_port_config *config;

	switch (kind) {
	case TAM_STACK_NOT:
		return 0;
	case TAM_STACK_AT_TC:
		return skb->mark != TAM_MARK_ENDED;
	case TAM_STACK_BY_DEVICE:
		return !is_sent(skb);
	case TAM_STACK_UNSPECIFIED:
		/* A socket took it: TCP frees an acknowledgment so when it has read it. */
		return !receiver && !is_sent(skb) && !is_multicast_v6(skb);
	case TAM_STACK_NO_SOCKET:
		return !is_echo_reply(skb);
	case TAM_STACK_NETFILTER:
		config = bpf_map_lookup_elem(&tam_ports, &arrival);
		return !config || !(config->flags & TAM_PORT_PACKET) || skb->_skb_refdst;
	default:
		return 1;
	}
}

/* Returns the index of a dropped buffer's arrival: a port's, TAM_STACK_OWN, or
 * TAM_STACK_ARRIVALS if it does not count here. */
static __always_inline __u32 stack_arrival(const struct sk_buff *skb, __u32 reason,
					   const struct sock *receiver)
{
	int device = skb->skb_iif;
	enum tam_stack_kind kind;
	__u32 arrival;

	if (device <= 0)
		return TAM_STACK_ARRIVALS;
	kind = stack_kinds[reason_index(reason)];
	if (kind == TAM_STACK_NOT || !is_here(skb, receiver))
		return TAM_STACK_ARRIVALS;
	arrival = arrival_by(device);
	return arrival < TAM_STACK_ARRIVALS && counts(skb, kind, arrival, receiver) ? arrival
									  : TAM_STACK_ARRIVALS;
}

#endif
