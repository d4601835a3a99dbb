/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Removal of a VXLAN header (RFC 7348), and learning.
 *
 * A packet to UDP port 4789 of a known network (VNI) loses its outer headers, 50
 * bytes; the inner source address is remembered with the outer one. Dropped: with
 * reason 1 what is no VXLAN or cut off, with 2 an unknown network, with 3 what
 * cannot be shortened. */
#include "function.h"

#define PORT TAM_BE16(4789)
#define VXLAN UDP_DATA
#define INNER (VXLAN + 8)
#define VALID_VNI 0x08
#define NETWORKS 64
#define PROBES 4
#define STATIONS 256

struct network {
	u32 number; /* 0: empty */
	u32 packets;
	u64 bytes;
};

struct station {
	u32 address_low;
	u32 address_high;
	u32 tunnel;
	u32 last_ms;
};

#define FIRST_networks                                                        \
	{                                                                     \
		[5] = {5, 0, 0}, [6] = {69, 0, 0}, [7] = {133, 0, 0},         \
		[42] = {42, 0, 0}, [63] = {0xfffffe, 0, 0}, [0] = {63, 0, 0}, \
	}
#define FIRST_stations {{0, 0, 0, 0}}
#define TABLES(TABLE)                              \
	TABLE(struct network, networks, NETWORKS)  \
	TABLE(struct station, stations, STATIONS)
DEFINE_TABLES(TABLES)

FUNCTION(vxlan_decap, 64)

INLINE u32 is_known(const struct packet *packet, u32 number)
{
	for (u32 probe = 0; probe < PROBES; probe++) {
		struct network TABLE_SPACE *network = AT(networks, (number + probe) % NETWORKS);
		if (MISSING(network) || network->number == 0)
			return 0;
		if (network->number == number) {
			network->packets++;
			network->bytes += length_of(packet);
			return 1;
		}
	}
	return 0;
}

u32 handle(struct packet *packet)
{
	if (!is_ipv4(packet) || GET8(packet, IP_PROTOCOL) != PROTOCOL_UDP || !has(packet, INNER) ||
	    GET16(packet, L4_DESTINATION) != PORT)
		return TAM_PASS;
	if (!(GET8(packet, VXLAN) & VALID_VNI) || !has(packet, INNER + ETH_TYPE))
		return TAM_DROP(1);
	u32 number = TAM_BE32(GET32(packet, VXLAN + 4)) >> 8;
	if (number == 0 || !is_known(packet, number))
		return TAM_DROP(2);
	u32 tunnel = GET32(packet, IP_SOURCE);
	u32 low = GET32(packet, INNER + ETH_SOURCE), high = GET16(packet, INNER + ETH_SOURCE + 4);
	if (!resize_head(packet, -INNER))
		return TAM_DROP(3);
	struct station TABLE_SPACE *station =
		AT(stations, finished(mixed(low, high)) % STATIONS);
	if (MISSING(station))
		return TAM_PASS;
	station->address_low = low;
	station->address_high = high;
	station->tunnel = tunnel;
	station->last_ms = now_ms();
	return TAM_PASS;
}
