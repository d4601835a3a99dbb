/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Packet services in C: the packet ABI, version 1 (docs/reference/module-abi.md), in the
 * shape of the Rust SDK. No library: every name is an address, a number, an
 * import, or a few lines that become part of the module.
 *
 *   #include "tam.h"
 *   TAM_MANIFEST_FILE("module.toml")
 *   TAM_COUNTER(packets)
 *
 *   TAM_ON_PACKET
 *   {
 *       tam_count(packets, 1);
 *       return TAM_PASS;
 *   }
 *
 * `tam build` compiles every .c file of a folder with it. By hand: clang and LLVM's
 * linker 19 or newer,
 *
 *   clang --target=wasm32 -O2 -ffreestanding -fvisibility=hidden -c service.c
 *   wasm-ld --no-entry --stack-first -z stack-size=32768 --global-base=36864 \
 *           --export-dynamic --strip-debug service.o -o service.wasm
 */
#ifndef TAM_H
#define TAM_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed int i32;
typedef signed long long i64;

/* Metadata of the packet, written by the node at a fixed address.
 *
 *  0               4               8         10        12     13     14     15     16
 * +---------------+---------------+---------+---------+------+------+------+------+
 * | packet length | window length | L3 at   | L4 at   |begins| IP   |proto-| flags|
 * |               |               |         |         | with |vers. | col  |      |
 * +-------+-------+---------------+---------+---------+------+------+------+------+
 * | port  |session| rule          | flow hash         | lane                      |
 * +-------+-------+---------------+-------------------+---------------------------+ 32
 * | now, milliseconds             | mark, 16 bytes                                :
 * +-------------------------------+------+----------------------------------------+ 48
 * : mark                          |level | reserved, zero                         |
 * +-------------------------------+------+----------------------------------------+ 64
 */
struct tam_meta {
	u32 packet_length;
	u32 window_length;
	u16 l3_offset; /* TAM_OFFSET_NONE: no IP header */
	u16 l4_offset;
	u8 begins_with; /* TAM_ETHERNET, TAM_DATA */
	u8 ip_version;	/* 4, 6, or 0 */
	u8 protocol;
	u8 flags; /* TAM_FRAGMENT, TAM_LATER_FRAGMENT */
	u16 port;
	u16 session;
	u32 rule;
	u32 flow_hash;
	u32 lane;
	u64 now_ms;
	u8 mark[16]; /* from the module before; changes go to the next one */
	u8 level;    /* TAM_AT_USER, TAM_AT_NIC, TAM_AT_KERNEL */
	u8 reserved[7];
};
_Static_assert(sizeof(struct tam_meta) == 64, "the ABI says 64 bytes");

#define TAM_META ((struct tam_meta *)0x8000)
#define TAM_OFFSET_NONE 0xffff
#define TAM_ETHERNET 1 /* an Ethernet header */
#define TAM_DATA 2     /* a data unit of an active packet, without headers */
#define TAM_FRAGMENT 1
#define TAM_LATER_FRAGMENT 2
#define TAM_AT_USER 0
#define TAM_AT_NIC 1
#define TAM_AT_KERNEL 2

/* Head of the packet, up to the length in the manifest's `window`. Index it with
 * constants if possible: in the kernel such an access goes directly to the packet. */
#define TAM_WINDOW ((u8 *)0x8102)
#define TAM_WINDOW_MAX 2048

/* Returns true if the window has this many bytes of the packet. */
static inline int tam_has(u32 bytes)
{
	return TAM_META->window_length >= bytes;
}

/* Verdicts: results of on_packet. */
#define TAM_PASS 0u
#define TAM_PASS_BY(edge) ((u32)(edge) << 16)	  /* pass to the graph's next module by this edge, 0 to 3 */
#define TAM_PASS_REROUTE 0x100u			  /* pass a re-addressed packet: look up its route again */
#define TAM_DROP(reason) (1u | (u32)(reason) << 16) /* drop, with a number of the manifest's `reasons` */
#define TAM_BOUNCE 2u				  /* send back, with MAC addresses swapped */
#define TAM_REDIRECT(port) (3u | (u32)(port) << 16) /* send by this port, from TAM_PORT() */
#define TAM_RAISE 4u				  /* pass to the same module at the next level up */

/* Errors of host functions, which then have no effect. */
#define TAM_OUT_OF_RANGE (-1)
#define TAM_NOT_FOUND (-2)
#define TAM_OVER_LIMIT (-3)
#define TAM_WRONG_HOOK (-4)

/* Numbers of the packet are big-endian, memory is little-endian. */
#define TAM_BE16(x) ((u16)__builtin_bswap16((u16)(x)))
#define TAM_BE32(x) ((u32)__builtin_bswap32((u32)(x)))

#define TAM_EXPORT(name) __attribute__((export_name(#name), used))
#define TAM_HOST(name) __attribute__((import_module("tam"), import_name(#name)))

/* Hooks; the first one is required. Each is followed by its body. */
#define TAM_ON_PACKET TAM_EXPORT(on_packet) u32 tam_on_packet(void)
#define TAM_ON_START TAM_EXPORT(on_start) i32 tam_on_start(void)	/* 0, or a reason to refuse */
#define TAM_ON_TIMER TAM_EXPORT(on_timer) void tam_on_timer(void)	/* with `timer_ms` */
#define TAM_ON_MESSAGE TAM_EXPORT(on_message) i32 tam_on_message(u32 length) /* message at TAM_WINDOW */
/* The session's memory is nearly used up: used memory and its limit, in KiB. */
#define TAM_ON_MEMORY_LOW TAM_EXPORT(on_memory_low) void tam_on_memory_low(u32 used, u32 most)

/* Event of the session's queue, enabled by tam_queue_watch(): TAM_QUEUE_SHORT or TAM_QUEUE_LONG
 * and the queue's length in KiB; or TAM_QUEUE_DROPPED and the number of bytes of the packet's head
 * at TAM_WINDOW. */
#define TAM_ON_QUEUE TAM_EXPORT(on_queue) void tam_on_queue(u32 what, u32 value)
#define TAM_QUEUE_SHORT 0
#define TAM_QUEUE_LONG 1
#define TAM_QUEUE_DROPPED 2

/* Access to the packet beyond the window, and its length; 0, or an error. */
TAM_HOST(packet_load) i32 tam_packet_load(u32 offset, void *to, u32 length);
TAM_HOST(packet_store) i32 tam_packet_store(u32 offset, const void *from, u32 length);
TAM_HOST(packet_resize_head) i32 tam_packet_resize_head(i32 delta);
TAM_HOST(packet_resize_tail) i32 tam_packet_resize_tail(i32 delta);
/* Sends a frame of the module's own by a port's number, or an IP packet by the node's routes;
 * then only the IP version in the Ethernet header matters. The manifest's `needs` lists "send". */
#define TAM_SEND_BY_ROUTE 0xffff
TAM_HOST(packet_send) i32 tam_packet_send(const void *frame, u32 length, u32 port);
/* Adds an event to the node's event stream; needs "events". */
TAM_HOST(event) i32 tam_event(u32 code, const void *data, u32 length);
/* Sends a message to the modules before this one in the graph; needs "messages". */
TAM_HOST(message_send) i32 tam_message_send(const void *message, u32 length);
TAM_HOST(now_ms) i64 tam_now_ms(void);
/* Hand a part of the state over to the next version, and read it from the previous one; only in
 * state_out and state_in. tam_state_read returns the number of bytes read, 0 at the end. At most
 * 65,536 bytes per call. */
TAM_HOST(state_write) i32 tam_state_write(const void *from, u32 length);
TAM_HOST(state_read) i32 tam_state_read(void *to, u32 length);
/* Look up a parameter or a port; only in on_start and on_message. The macros below take a name in
 * quotes. */
TAM_HOST(param_load) i32 tam_param_load(const char *name, u32 name_length, void *to, u32 capacity);
TAM_HOST(port_find) i32 tam_port_find(const char *name, u32 name_length);

/* Enables on_queue: called when more than `above` percent of the session's queue are in use, and
 * when no more than `below` percent are in use again; only in the same hooks. Needs "queues". */
TAM_HOST(queue_watch) i32 tam_queue_watch(u32 above, u32 below);

/* Loads a parameter into a variable of its type; true if the parameter exists. */
#define TAM_PARAMETER(name, variable)                                                            \
	(tam_param_load(name, sizeof(name) - 1, &(variable), sizeof(variable)) ==                \
	 (i32)sizeof(variable))
/* Returns a port's number, or TAM_NOT_FOUND. */
#define TAM_PORT(name) tam_port_find(name, sizeof(name) - 1)

/* Counter that `tam stats` shows by its name. */
#define TAM_COUNTER(name) __attribute__((visibility("default"), used)) u64 tam_counter_##name;
#define tam_count(name, by) ((void)(tam_counter_##name += (by)))

/* Declares, once, the variables that another version of the module takes over, as bytes and in
 * this order: TAM_KEEP(TAM_KEPT(flows), TAM_KEPT(count)). A version whose variables have another
 * total length does not take them. Without this, and with the same constants in both versions,
 * the whole memory is taken over. */
#define TAM_KEPT(variable) { &(variable), sizeof(variable) }
struct tam_kept {
	void *at;
	u32 length;
};
#define TAM_KEEP(...)                                                                            \
	static const struct tam_kept tam_kept[] = { __VA_ARGS__ };                               \
	TAM_EXPORT(state_out) i32 tam_keeps_out(void)                                            \
	{                                                                                        \
		return tam_pass_state(tam_kept, sizeof(tam_kept) / sizeof(tam_kept[0]), 1);      \
	}                                                                                        \
	TAM_EXPORT(state_in) i32 tam_keeps_in(u32 length)                                        \
	{                                                                                        \
		u32 known = 0;                                                                   \
		for (u32 i = 0; i < sizeof(tam_kept) / sizeof(tam_kept[0]); i++)                 \
			known += tam_kept[i].length;                                             \
		if (length != known)                                                             \
			return 1;                                                                \
		return tam_pass_state(tam_kept, sizeof(tam_kept) / sizeof(tam_kept[0]), 0);      \
	}

static inline i32 tam_pass_state(const struct tam_kept *kept, u32 count, u32 out)
{
	for (u32 i = 0; i < count; i++) {
		for (u32 at = 0; at < kept[i].length; at += 65536) {
			u32 rest = kept[i].length - at, length = rest < 65536 ? rest : 65536;
			u8 *bytes = (u8 *)kept[i].at + at;

			if (out ? tam_state_write(bytes, length) != 0
				: tam_state_read(bytes, length) != (i32)length)
				return 2;
		}
	}
	return 0;
}

/* Returns the Internet checksum (RFC 1071) after a word of 16 or 32 bits has changed (RFC 1624,
 * equation 3); all numbers in the packet's byte order. */
static inline u16 tam_sum_after16(u16 sum, u16 before, u16 after)
{
	u32 open = (u16)~sum + (u16)~before + (u32)after;

	open = (open & 0xffff) + (open >> 16);
	open = (open & 0xffff) + (open >> 16);
	return (u16)~open;
}

static inline u16 tam_sum_after32(u16 sum, u32 before, u32 after)
{
	return tam_sum_after16(tam_sum_after16(sum, (u16)before, (u16)after), (u16)(before >> 16),
			       (u16)(after >> 16));
}

/* IPv4 (RFC 791, section 3.1) and IPv6 (RFC 8200, section 3) in the packet's byte order. */
struct tam_ipv4 {
	u8 version_and_length;
	u8 tos;
	u16 total_length_be;
	u16 id_be;
	u16 fragment_be;
	u8 ttl;
	u8 protocol;
	u16 checksum;
	u8 source[4];
	u8 destination[4];
} __attribute__((packed));
_Static_assert(sizeof(struct tam_ipv4) == 20, "RFC 791");

struct tam_ipv6 {
	u32 version_class_label_be;
	u16 payload_length_be;
	u8 next_header;
	u8 hop_limit;
	u8 source[16];
	u8 destination[16];
} __attribute__((packed));
_Static_assert(sizeof(struct tam_ipv6) == 40, "RFC 8200");

/* Returns the IP header in the window, or 0 if the packet has none of this version or the window
 * does not hold all of it. */
static inline void *tam_l3(u32 version, u32 length)
{
	u32 at = TAM_META->l3_offset;

	return TAM_META->ip_version == version && tam_has(at + length) ? TAM_WINDOW + at : 0;
}

static inline struct tam_ipv4 *tam_ipv4(void)
{
	return (struct tam_ipv4 *)tam_l3(4, sizeof(struct tam_ipv4));
}

static inline struct tam_ipv6 *tam_ipv6(void)
{
	return (struct tam_ipv6 *)tam_l3(6, sizeof(struct tam_ipv6));
}

/* UDP (RFC 768), and the beginning of ICMP and ICMPv6 messages (RFC 792, RFC 4443). */
struct tam_udp {
	u16 source_be;
	u16 destination_be;
	u16 length_be;
	u16 checksum;
} __attribute__((packed));

struct tam_icmp {
	u8 type;
	u8 code;
	u16 checksum;
	u32 rest;
} __attribute__((packed));

/* Returns the L4 header, or 0 if the packet has none of this protocol or the window does not hold
 * `length` bytes of it. A fragment other than the first has none. */
static inline void *tam_l4(u32 protocol, u32 length)
{
	u32 at = TAM_META->l4_offset;

	return at != TAM_OFFSET_NONE && TAM_META->protocol == protocol && tam_has(at + length)
		       ? TAM_WINDOW + at
		       : 0;
}

/* Embeds the manifest: a file in the folder of the source, or line by line,
 * TAM_MANIFEST(name = "example"). */
#define TAM_MANIFEST_FILE(path) \
	__asm__(".section .custom_section.tamandua,\"\",@\n.incbin \"" path "\"\n.byte 10\n");
#define TAM_MANIFEST(...) TAM_MANIFEST_LINE(#__VA_ARGS__)
#define TAM_MANIFEST_LINE(line) \
	__asm__(".section .custom_section.tamandua,\"\",@\n.ascii " #line "\n.byte 10\n");

#endif
