/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* `echo`: answers pings (RFC 792, RFC 4443) and UDP datagrams to port 7 (RFC 862) in place of
 * their destination, and active packets that call it (`tam ping`). Other packets are forwarded
 * unchanged.
 *
 *   request ─▶ addresses and ports swapped, type changed, checksums updated ─▶ back
 */
#include "tam.h"

TAM_MANIFEST_FILE("module.toml")

TAM_COUNTER(pings)     /* pings answered */
TAM_COUNTER(datagrams) /* datagrams answered */
TAM_COUNTER(calls)     /* payloads of active packets, sent back unchanged */
TAM_COUNTER(others)    /* packets forwarded */

#define PROTOCOL_ICMP 1
#define PROTOCOL_UDP 17
#define PROTOCOL_ICMPV6 58
#define ECHO_PORT TAM_BE16(7)

static u8 hops = 64;
static u8 answer_pings = 1, answer_datagrams = 1;

TAM_ON_START
{
	TAM_PARAMETER("hops", hops);
	TAM_PARAMETER("pings", answer_pings);
	TAM_PARAMETER("datagrams", answer_datagrams);
	/* An answer without a hop left would not arrive. */
	return hops ? 0 : 1;
}

/* Turns a request into its answer, and updates the checksum for the changed type. */
static int answer_ping(u32 protocol, u8 request, u8 answer)
{
	struct tam_icmp *icmp = tam_l4(protocol, sizeof(*icmp));

	if (!icmp || icmp->type != request || icmp->code != 0)
		return 0;
	icmp->checksum = tam_sum_after16(icmp->checksum, request, answer);
	icmp->type = answer;
	tam_count(pings, 1);
	return 1;
}

/* Turns a datagram into its answer. The checksum is unchanged: swapped ports have the same sum. A
 * datagram from port 7 is an answer itself: two echo services would answer each other for ever. */
static int answer_datagram(void)
{
	struct tam_udp *udp = tam_l4(PROTOCOL_UDP, sizeof(*udp));

	if (!udp || udp->destination_be != ECHO_PORT || udp->source_be == ECHO_PORT)
		return 0;
	udp->destination_be = udp->source_be;
	udp->source_be = ECHO_PORT;
	tam_count(datagrams, 1);
	return 1;
}

static int answer(u32 icmp, u8 request, u8 reply)
{
	/* All fragments of a datagram would have to be sent back. */
	if (TAM_META->flags & TAM_FRAGMENT)
		return 0;
	return (answer_pings && answer_ping(icmp, request, reply)) ||
	       (answer_datagrams && answer_datagram());
}

static void swap(u8 *one, u8 *other, u32 bytes)
{
	for (u32 i = 0; i < bytes; i++) {
		u8 kept = one[i];

		one[i] = other[i];
		other[i] = kept;
	}
}

/* Returns true for a unicast address: an answer goes to one host, and comes from one (RFC 1122,
 * section 3.2.2.6). */
static int is_host_v4(const u8 *address)
{
	return address[0] != 0 && address[0] < 224;
}

TAM_ON_PACKET
{
	struct tam_ipv4 *v4 = tam_ipv4();
	struct tam_ipv6 *v6 = tam_ipv6();

	if (TAM_META->begins_with == TAM_DATA) {
		tam_count(calls, 1);
		return TAM_BOUNCE;
	}
	if (v4 && is_host_v4(v4->source) && is_host_v4(v4->destination) &&
	    answer(PROTOCOL_ICMP, 8, 0)) {
		u16 before = (u16)(v4->ttl | v4->protocol << 8);

		swap(v4->source, v4->destination, 4);
		v4->ttl = hops;
		v4->checksum = tam_sum_after16(v4->checksum, before, (u16)(hops | v4->protocol << 8));
		return TAM_BOUNCE;
	}
	if (v6 && v6->source[0] != 0xff && v6->destination[0] != 0xff &&
	    answer(PROTOCOL_ICMPV6, 128, 129)) {
		swap(v6->source, v6->destination, 16);
		v6->hop_limit = hops;
		return TAM_BOUNCE;
	}
	tam_count(others, 1);
	return TAM_PASS;
}
