/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Numbers and blocks of segments: src/segment.rs of the crate `splice` in C. */
#pragma once

#include <linux/types.h>

#include "skb.h"
#include "splice_types.h"

static __always_inline __u32 later(__u32 a, __u32 b)
{
	return before(a, b) ? b : a;
}

static __always_inline __u32 earlier(__u32 a, __u32 b)
{
	return before(a, b) ? a : b;
}

static __always_inline __u32 distance(__u32 a, __u32 b)
{
	return before(a, b) ? b - a : a - b;
}

static __always_inline int is_plain(__u32 flags)
{
	return (flags & (TCP_FIN | TCP_SYN | TCP_RST | TCP_URG | TCP_ACK)) == TCP_ACK;
}

static __always_inline int is_pure_ack(const struct splice_segment *segment)
{
	return !segment->payload_bytes && is_plain(segment->flags);
}

static __always_inline void sack_keep(struct splice_segment *segment, __u32 kept, __u32 start,
				      __u32 end)
{
	segment->sack[kept & (SACK_BLOCKS_MAX - 1)][0] = start;
	segment->sack[kept & (SACK_BLOCKS_MAX - 1)][1] = end;
}

/* Keeps the parts of the blocks before `at`, with numbers that are smaller by `offset`. */
static __always_inline void sack_before(struct splice_segment *segment, __u32 at, __u32 offset)
{
	__u32 kept = 0;

	for (__u32 i = 0; i < SACK_BLOCKS_MAX; i++) {
		__u32 start = segment->sack[i][0], end = segment->sack[i][1];

		if (i >= segment->sack_count || !before(start, at))
			continue;
		sack_keep(segment, kept++, start - offset, earlier(end, at) - offset);
	}
	segment->sack_count = kept;
}

/* Keeps the parts from `at` on. */
static __always_inline void sack_from(struct splice_segment *segment, __u32 at, __u32 offset)
{
	__u32 kept = 0;

	for (__u32 i = 0; i < SACK_BLOCKS_MAX; i++) {
		__u32 start = later(segment->sack[i][0], at), end = segment->sack[i][1];

		if (i >= segment->sack_count || !before(start, end))
			continue;
		sack_keep(segment, kept++, start - offset, end - offset);
	}
	segment->sack_count = kept;
}

static __always_inline void sack_less(struct splice_segment *segment, __u32 offset)
{
	for (__u32 i = 0; i < SACK_BLOCKS_MAX; i++) {
		segment->sack[i][0] -= offset;
		segment->sack[i][1] -= offset;
	}
}
