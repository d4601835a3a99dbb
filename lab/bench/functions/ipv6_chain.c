/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Walk over IPv6 extension headers to the upper-layer protocol, which is counted.
 *
 * Dropped: with reason 1 a routing header of type 0 (RFC 5095), with 2 a chain of
 * more than HEADERS_MAX, with 3 one that ends beyond the packet's first WINDOW
 * bytes. A fragment that is not the first is counted as fragment and not parsed. */
#include "function.h"

#define WINDOW 256
#define TYPE_IPV6 TAM_BE16(0x86dd)
#define NEXT_HEADER (IP + 6)
#define EXTENSIONS (IP + 40)
#define HEADERS_MAX 8

enum { HOP_BY_HOP = 0, ROUTING = 43, FRAGMENT = 44, AUTHENTICATION = 51, DESTINATION = 60 };

struct protocol {
	u32 packets;
	u32 headers;
	u64 bytes;
};

#define FIRST_protocols {{0}}
#define TABLES(TABLE) TABLE(struct protocol, protocols, 256)
DEFINE_TABLES(TABLES)

FUNCTION(ipv6_chain, 256)

INLINE u32 count(const struct packet *packet, u32 number, u32 headers)
{
	struct protocol TABLE_SPACE *protocol = AT(protocols, number);
	if (MISSING(protocol))
		return TAM_PASS;
	protocol->packets++;
	protocol->headers += headers;
	protocol->bytes += length_of(packet);
	return TAM_PASS;
}

u32 handle(struct packet *packet)
{
	if (!has(packet, EXTENSIONS) || GET16(packet, ETH_TYPE) != TYPE_IPV6)
		return TAM_PASS;
	u32 next = GET8(packet, NEXT_HEADER), at = EXTENSIONS;
	for (u32 headers = 0; headers <= HEADERS_MAX; headers++) {
		if (next != HOP_BY_HOP && next != ROUTING && next != FRAGMENT &&
		    next != AUTHENTICATION && next != DESTINATION)
			return count(packet, next, headers);
		if (at > WINDOW - 8)
			return TAM_DROP(3);
		u8 *header = bytes_at(packet, at, 8);
		if (!header)
			return TAM_DROP(3);
		if (next == FRAGMENT) {
			if (*(packet_u16 *)(header + 2) & TAM_BE16(0xfff8))
				return count(packet, next, headers);
			at += 8;
		} else if (next == AUTHENTICATION) {
			at += (header[1] + 2) * 4;
		} else {
			if (next == ROUTING && header[2] == 0)
				return TAM_DROP(1);
			at += (header[1] + 1) * 8;
		}
		next = header[0];
	}
	return TAM_DROP(2);
}
