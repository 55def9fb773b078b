/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Headers of sealed responses: src/piece.rs of the crate `tls`, which has the proof. A false length costs the
 * connections: the process compares. */
#pragma once

#include "parse.h"
#include "splice_types.h"

#define PIECE_HEADER_BYTES 40
#define PIECE_MAGIC 0x554c5350 /* "ULSP" */
#define PIECE_IS_LAST 1

struct piece_header {
	__be32 magic;
	__be16 flags;
	__be16 status;
	__be64 bytes;
};

/* Returns the bytes of the records behind a header that is the whole payload; 0 if it is none, or more pieces
 * follow. */
static __always_inline __u32 read_piece(struct __sk_buff *skb, const struct segment *packet)
{
	__u32 at = packet->at + packet->bytes - packet->payload;
	struct piece_header header;
	__u64 bytes;

	if (packet->payload != PIECE_HEADER_BYTES ||
	    bpf_skb_load_bytes(skb, at, &header, sizeof(header)) ||
	    header.magic != bpf_htonl(PIECE_MAGIC) ||
	    !(header.flags & bpf_htons(PIECE_IS_LAST)))
		return 0;
	bytes = bpf_be64_to_cpu(header.bytes);
	return bytes <= LENGTH_BYTES_MAX ? bytes : 0;
}
