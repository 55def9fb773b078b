/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Checksums of segments. */
#pragma once

#include <linux/bpf.h>

#include "parse.h"

/* Chunk of a segment for the computation of its checksum. */
#define SCRATCH_BYTES 512
struct chunk {
	__u8 bytes[SCRATCH_BYTES];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct chunk);
} scratch SEC(".maps");

static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

static __always_inline __u64 pseudo_header(const struct segment *segment)
{
	const __u32 *addresses = (const __u32 *)&segment->key;
	__u64 sum = bpf_htonl(segment->bytes);

	sum += bpf_htonl(IPPROTO_TCP);
	sum += (__u64)addresses[0] + addresses[4];
	if (segment->key.family == 4)
		return sum;
	for (int i = 1; i < 4; i++)
		sum += (__u64)addresses[i] + addresses[4 + i];
	return sum;
}

#define LOAD_FRAME 0
#define LOAD_SKB 1

static __always_inline int load(void *context, int from, __u32 at, void *to, __u32 bytes)
{
	if (from == LOAD_SKB)
		return bpf_skb_load_bytes(context, at, to, bytes);
	return bpf_xdp_load_bytes(context, at, to, bytes);
}

/* Returns the folded sum of `bytes` bytes from `at` and of `sum`; 0, an impossible sum of a header,
 * if the bytes are missing. A segment has at most 65535 bytes, which bounds the loop. */
static __always_inline __u32 sum_of(void *context, int from, __u32 at, __u32 bytes, __u32 sum)
{
	__u32 key = 0, done = 0;
	__u8 *chunk = bpf_map_lookup_elem(&scratch, &key);

	if (!chunk)
		return 0;
	for (int i = 0; i < 65535 / SCRATCH_BYTES; i++) {
		if (bytes - done < SCRATCH_BYTES)
			break;
		if (load(context, from, at + done, chunk, SCRATCH_BYTES))
			return 0;
		sum = bpf_csum_diff(0, 0, (__be32 *)chunk, SCRATCH_BYTES, sum);
		done += SCRATCH_BYTES;
	}
	__u32 left = bytes - done;

	/* Keeps the compiler from another comparison, which the verifier could not follow. */
	asm volatile("" : "+r"(left));
	if (left >= SCRATCH_BYTES)
		return 0;
	if (left) {
		__u32 last_word = (left - 1) & ~3u;

		*(__u32 *)(chunk + last_word) = 0;
		if (load(context, from, at + done, chunk, left))
			return 0;
		sum = bpf_csum_diff(0, 0, (__be32 *)chunk, last_word + 4, sum);
	}
	return fold(sum);
}

/* Global functions: the verifier checks each once instead of once for each call. */
__attribute__((noinline)) __u32 skb_sum(struct __sk_buff *skb, __u32 at, __u32 bytes, __u32 sum)
{
	return sum_of(skb, LOAD_SKB, at, bytes, sum);
}

__attribute__((noinline)) __u32 frame_sum(struct xdp_md *frame, __u32 at, __u32 bytes, __u32 sum)
{
	return sum_of(frame, LOAD_FRAME, at, bytes, sum);
}

/* A checksum equal to the pseudo header's sum is a partial one, which the sending host's device has
 * not completed (veth, TAP): the segment was not on a wire. */
static __always_inline int is_pending(const struct segment *segment, __u32 pseudo)
{
	return segment->check == pseudo;
}

static __always_inline int is_intact_frame(struct xdp_md *frame, const struct segment *segment)
{
	__u32 pseudo = fold(pseudo_header(segment));

	return is_pending(segment, pseudo) ||
	       frame_sum(frame, segment->at, segment->bytes, pseudo) == 0xffff;
}

/* Returns true if the checksum is a partial one, which is sure: one complete checksum in 65,536 equals the
 * pseudo header's sum, too. What the kernel has merged, or is to divide, has a partial one. */
static __always_inline int is_partial_skb(struct __sk_buff *skb, const struct segment *segment)
{
	__u32 pseudo = fold(pseudo_header(segment));

	return skb->gso_size ||
	       (is_pending(segment, pseudo) &&
		skb_sum(skb, segment->at, segment->bytes, pseudo) != 0xffff);
}

/* The kernel marks packets that a device has verified or that it has merged itself. */
static __always_inline int is_intact_skb(struct __sk_buff *skb, const struct segment *segment)
{
	__u32 pseudo = fold(pseudo_header(segment));

	/* The order of cost: the level is the result of a call. */
	return is_pending(segment, pseudo) || skb->gso_size ||
	       bpf_csum_level(skb, BPF_CSUM_LEVEL_QUERY) >= 0 ||
	       skb_sum(skb, segment->at, segment->bytes, pseudo) == 0xffff;
}
