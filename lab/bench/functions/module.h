/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What the functions need to be Tamandua modules: the packet is the
 * window, a table is a variable, and the tables' addresses are exported so that
 * the test vectors find them. */
#ifndef MODULE_H
#define MODULE_H

#include "tam.h"

#define TABLE_SPACE
#define MISSING(entry) 0
#define AT(name, index) (&name[index])
#define DECLARE_TABLE(entry_type, name, count) \
	__attribute__((visibility("default"))) entry_type name[count] = FIRST_##name;
#define DEFINE_TABLES(TABLES) TABLES(DECLARE_TABLE)

/* There is one packet: nothing to carry about. */
struct packet {
};

#define HEAD(packet) TAM_WINDOW

/* Whether the packet has its first `length` bytes, at most the window. */
static inline int has(const struct packet *packet, u32 length)
{
	return TAM_META->window_length >= length;
}

/* The byte at `at`; or -1 beyond the window. */
static inline i32 byte_at(const struct packet *packet, u32 at)
{
	return at < TAM_META->window_length ? TAM_WINDOW[at] : -1;
}

/* The `count` bytes at `at`; or none, when they end beyond the window. */
static inline u8 *bytes_at(const struct packet *packet, u32 at, u32 count)
{
	return at + count <= TAM_META->window_length ? TAM_WINDOW + at : (u8 *)0;
}

static inline u32 length_of(const struct packet *packet)
{
	return TAM_META->packet_length;
}

static inline u64 now_ms(void)
{
	return TAM_META->now_ms;
}

/* Adds bytes in front, or takes some away; whether that went well. */
static inline int resize_head(struct packet *packet, i32 delta)
{
	return tam_packet_resize_head(delta) == 0;
}

#define FUNCTION(function_name, bytes)                                                  \
	TAM_MANIFEST(abi = 1)                                                           \
	TAM_MANIFEST(name = #function_name)                                             \
	TAM_MANIFEST(version = "1.0.0")                                                 \
	TAM_MANIFEST(window = bytes)                                                    \
	TAM_MANIFEST(levels = ["nic", "kernel", "user"])                                \
	static inline __attribute__((always_inline)) u32 handle(struct packet *packet); \
	TAM_EXPORT(on_packet) u32 on_packet(void)                                       \
	{                                                                               \
		struct packet packet;                                                   \
		return handle(&packet);                                                 \
	}

#endif
