/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* IPIP encapsulation (RFC 2003): one end of a tunnel.
 *
 * An IPv4 packet gets an outer header from 192.0.2.1 to 192.0.2.2; one that is
 * IPIP already loses its outer header. So run on its own result it undoes its
 * work: every second run restores the packet. */
#include "function.h"

#define OUTER_LENGTH 20
#define TTL 64

struct tunnel {
	u32 local;
	u32 remote;
	u32 encapsulated;
	u32 decapsulated;
};

#define FIRST_tunnels {{ADDRESS(192, 0, 2, 1), ADDRESS(192, 0, 2, 2), 0, 0}}
#define TABLES(TABLE) TABLE(struct tunnel, tunnels, 1)
DEFINE_TABLES(TABLES)

FUNCTION(ipip, 64)

/* The Ethernet header, which stays first. */
struct ethernet {
	u32 words[3];
	u16 type;
};

INLINE struct ethernet ethernet_of(const struct packet *packet)
{
	return (struct ethernet){{GET32(packet, 0), GET32(packet, 4), GET32(packet, 8)},
				 GET16(packet, ETH_TYPE)};
}

INLINE void put_ethernet(const struct packet *packet, const struct ethernet *ethernet)
{
	PUT32(packet, 0, ethernet->words[0]);
	PUT32(packet, 4, ethernet->words[1]);
	PUT32(packet, 8, ethernet->words[2]);
	PUT16(packet, ETH_TYPE, ethernet->type);
}

INLINE u32 decapsulate(struct packet *packet, struct tunnel TABLE_SPACE *tunnel)
{
	struct ethernet ethernet = ethernet_of(packet);
	if (!has(packet, L4 + OUTER_LENGTH) || GET8(packet, L4) != VERSION_AND_LENGTH)
		return TAM_DROP(1);
	if (!resize_head(packet, -OUTER_LENGTH) || !has(packet, L4))
		return TAM_DROP(2);
	put_ethernet(packet, &ethernet);
	tunnel->decapsulated++;
	return TAM_PASS;
}

INLINE u32 encapsulate(struct packet *packet, struct tunnel TABLE_SPACE *tunnel)
{
	struct ethernet ethernet = ethernet_of(packet);
	u8 tos = GET8(packet, IP_TOS);
	u16 inner = GET16(packet, IP_LENGTH);
	u16 length = TAM_BE16(TAM_BE16(inner) + OUTER_LENGTH);
	u32 local = tunnel->local, remote = tunnel->remote;
	if (!resize_head(packet, OUTER_LENGTH) || !has(packet, L4))
		return TAM_DROP(2);
	put_ethernet(packet, &ethernet);
	u32 begin = VERSION_AND_LENGTH | (u32)tos << 8 | (u32)length << 16;
	u32 middle = TAM_BE32(0x00004000); /* no identification, not to be fragmented */
	u32 end = TTL | PROTOCOL_IPIP << 8;
	u16 sum = checksum_after(0xffff, 0, begin);
	sum = checksum_after(sum, 0, middle);
	sum = checksum_after(sum, 0, end);
	sum = checksum_after(sum, 0, local);
	sum = checksum_after(sum, 0, remote);
	PUT32(packet, IP, begin);
	PUT32(packet, IP + 4, middle);
	PUT32(packet, IP_TTL, end | (u32)sum << 16);
	PUT32(packet, IP_SOURCE, local);
	PUT32(packet, IP_DESTINATION, remote);
	tunnel->encapsulated++;
	return TAM_PASS;
}

u32 handle(struct packet *packet)
{
	if (!is_ipv4(packet))
		return TAM_PASS;
	struct tunnel TABLE_SPACE *tunnel = AT(tunnels, 0);
	if (MISSING(tunnel))
		return TAM_PASS;
	if (GET8(packet, IP_PROTOCOL) == PROTOCOL_IPIP)
		return decapsulate(packet, tunnel);
	return encapsulate(packet, tunnel);
}
