/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Function without work: every packet passes, so that entry and exit remain. */
#include "tam.h"

TAM_MANIFEST(abi = 1)
TAM_MANIFEST(name = "nothing")
TAM_MANIFEST(version = "1.0.0")
TAM_MANIFEST(window = 64)

TAM_EXPORT(on_packet) u32 on_packet(void)
{
	return TAM_PASS;
}
