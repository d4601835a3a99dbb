/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* SHA-1 as a module, for `tam reproduce sane-table1 sane-5`.
 *
 * A packet's first four bytes are the number of bytes of the module's own memory to hash (a
 * multiple of 64, little-endian); the digest replaces the next twenty. If the word after that is
 * not zero, the memory is filled first. */
#include "tam.h"
#include "sha1.h"

#define LENGTH_MAX (4 << 20)

TAM_MANIFEST(abi = 1)
TAM_MANIFEST(name = "sha1")
TAM_MANIFEST(version = "1.0.0")
TAM_MANIFEST(window = 64)
TAM_MANIFEST(memory_pages_max = 68)

static uint8_t bytes[LENGTH_MAX];

TAM_EXPORT(on_packet) u32 on_packet(void)
{
	u32 *words = (u32 *)TAM_WINDOW;
	u32 length = words[0];

	if (!tam_has(8 + SHA1_LENGTH) || length > LENGTH_MAX)
		return TAM_PASS;
	if (words[1 + SHA1_LENGTH / 4])
		sha1_fill(bytes, length);
	sha1(bytes, length, TAM_WINDOW + 4);
	return TAM_PASS;
}
