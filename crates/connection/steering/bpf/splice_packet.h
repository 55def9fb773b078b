/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Reads a segment into the fields that splice.h translates, and writes them back. */
#pragma once

#include "datagram.h"
#include "splice.h"
#include "splice_socket.h"

#define HEADER_BYTES_MAX 60
/* A power of two, so that a mask bounds an offset. */
#define HEADER_BUFFER 64
#define SACK_BLOCK_BYTES 8

/* A packet while it is translated. */
struct splice_work {
	__u8 original[HEADER_BUFFER]; /* the TCP header that came, zeros behind it */
	__u8 now[HEADER_BUFFER];      /* as it is in the packet */
	__u8 next[HEADER_BUFFER];     /* as it is to be */
	struct splice_segment segment;
	struct splice_segment ack;
	struct splice_client nobody;  /* not read without a splice */
	struct splice_state none;     /* no splice */
	struct rule_datagram datagram;
	struct socket_state ours;     /* of a beginning splice: the client's, */
	struct socket_state theirs;   /* the server's */
	struct splice_start start;
	struct splice_rule rule;
	__u32 bytes;                  /* of the TCP header */
	__u32 timestamps_at;          /* offset of the value; 0: there are none */
	__u32 sack_at;                /* offset of the option; 0: there is none */
	__u32 sack_bytes;
	__u32 at;                     /* offset of the next option */
	__u32 reserved;
};

static __always_inline __u32 word_at(const __u8 *bytes, __u32 at)
{
	__be32 word;

	__builtin_memcpy(&word, bytes + (at & (HEADER_BUFFER - 4)), sizeof(word));
	return bpf_ntohl(word);
}

/* Options begin anywhere. */
static __always_inline __u32 unaligned_word_at(const __u8 *bytes, __u32 at)
{
	__u32 word = 0;

	for (int i = 0; i < 4; i++)
		word = word << 8 | bytes[(at + i) & (HEADER_BUFFER - 1)];
	return word;
}

static __always_inline void put_word(__u8 *bytes, __u32 at, __u32 word)
{
	for (int i = 0; i < 4; i++)
		bytes[(at + i) & (HEADER_BUFFER - 1)] = word >> (24 - 8 * i);
}

/* Reads the option at `work->at`. Returns 0 at the end. The place is in memory, not in a register: the
 * verifier then sees the same state in each turn. */
static __always_inline int read_option(struct splice_work *work)
{
	__u32 at = *(volatile __u32 *)&work->at, length;
	__u8 kind;

	if (at >= work->bytes)
		return 0;
	kind = work->original[at & (HEADER_BUFFER - 1)];
	if (kind == OPTION_END)
		return 0;
	if (kind == OPTION_NOP) {
		*(volatile __u32 *)&work->at = at + 1;
		return 1;
	}
	length = work->original[(at + 1) & (HEADER_BUFFER - 1)];
	if (length < 2 || at + length > work->bytes)
		return 0;
	if (kind == OPTION_TIMESTAMPS && length == TIMESTAMPS_BYTES)
		work->timestamps_at = at + 2;
	if (kind == OPTION_SACK && length % SACK_BLOCK_BYTES == 2) {
		work->sack_at = at;
		work->sack_bytes = length;
	}
	*(volatile __u32 *)&work->at = at + length;
	return 1;
}

/* Finds timestamps and selective acknowledgements. */
static __always_inline void find_options(struct splice_work *work)
{
	__u32 bytes = work->bytes;

	work->timestamps_at = 0;
	work->sack_at = 0;
	work->sack_bytes = 0;
	if (bytes == sizeof(struct tcphdr))
		return;
	if (bytes == sizeof(struct tcphdr) + USUAL_OPTIONS_BYTES &&
	    word_at(work->original, sizeof(struct tcphdr)) == 0x0101080a) {
		work->timestamps_at = sizeof(struct tcphdr) + 4;
		return;
	}
	work->at = sizeof(struct tcphdr);
	for (int i = 0; i < HEADER_BYTES_MAX - (int)sizeof(struct tcphdr); i++)
		if (!read_option(work))
			return;
}

/* Global functions: the verifier checks each once instead of once for each path to it. */
#define GLOBAL __attribute__((noinline))

/* Returns -1 if the header is not there. */
GLOBAL int read_segment(struct __sk_buff *skb, struct segment *packet, struct splice_work *work)
{
	struct splice_segment *segment;
	__u32 bytes;

	if (!packet || !work)
		return -1;
	segment = &work->segment;
	bytes = packet->bytes - packet->payload;
	if (bytes < sizeof(struct tcphdr) || bytes > HEADER_BYTES_MAX)
		return -1;
	__builtin_memset(work->original, 0, sizeof(work->original));
	/* Nearly all: no options, or timestamps. */
	if (bytes == sizeof(struct tcphdr) + USUAL_OPTIONS_BYTES) {
		if (bpf_skb_load_bytes(skb, packet->at, work->original,
				       sizeof(struct tcphdr) + USUAL_OPTIONS_BYTES))
			return -1;
	} else if (bpf_skb_load_bytes(skb, packet->at, work->original, bytes)) {
		return -1;
	}
	work->bytes = bytes;
	__builtin_memcpy(work->now, work->original, sizeof(work->now));
	find_options(work);
	segment->seq = packet->seq;
	segment->ack = packet->ack;
	segment->flags = packet->flags;
	segment->window = packet->window;
	segment->payload_bytes = packet->payload;
	segment->has_timestamps = !!work->timestamps_at;
	segment->value = unaligned_word_at(work->original, work->timestamps_at);
	segment->echo = unaligned_word_at(work->original, work->timestamps_at + 4);
	/* The urgent pointer without its flag: see direct.bpf.c. */
	segment->is_copy = (work->original[18] | work->original[19]) && !(packet->flags & TCP_URG);
	segment->sack_count = 0;
	if (!work->sack_at)
		return 0;
	for (__u32 i = 0; i < SACK_BLOCKS_MAX; i++) {
		__u32 at = work->sack_at + 2 + i * SACK_BLOCK_BYTES;

		if (2 + (i + 1) * SACK_BLOCK_BYTES > work->sack_bytes)
			break;
		segment->sack[i][0] = unaligned_word_at(work->original, at);
		segment->sack[i][1] = unaligned_word_at(work->original, at + 4);
		segment->sack_count = i + 1;
	}
	return 0;
}

/* Writes the blocks; the rest of the option becomes NOPs. */
static __always_inline void compose_sack(struct splice_work *work,
					 const struct splice_segment *segment)
{
	__u32 at = work->sack_at, count = segment->sack_count;

	if (!at)
		return;
	work->next[at & (HEADER_BUFFER - 1)] = count ? OPTION_SACK : OPTION_NOP;
	work->next[(at + 1) & (HEADER_BUFFER - 1)] = count ? 2 + count * SACK_BLOCK_BYTES :
							     OPTION_NOP;
	for (__u32 i = 0; i < SACK_BLOCKS_MAX; i++) {
		__u32 block = at + 2 + i * SACK_BLOCK_BYTES;

		if (2 + (i + 1) * SACK_BLOCK_BYTES > work->sack_bytes)
			break;
		put_word(work->next, block, i < count ? segment->sack[i][0] : 0x01010101);
		put_word(work->next, block + 4, i < count ? segment->sack[i][1] : 0x01010101);
	}
}

/* Makes the header of a segment, or of the acknowledgement, out of the one that came. */
GLOBAL int compose(struct splice_work *work, int is_ack, __u32 source, __u32 destination)
{
	struct splice_segment *segment;
	struct tcphdr *tcp;

	if (!work)
		return -1;
	segment = is_ack ? &work->ack : &work->segment;
	tcp = (struct tcphdr *)work->next;
	__builtin_memcpy(work->next, work->original, sizeof(work->next));
	tcp->source = source;
	tcp->dest = destination;
	tcp->seq = bpf_htonl(segment->seq);
	tcp->ack_seq = bpf_htonl(segment->ack);
	tcp->window = bpf_htons(segment->window);
	work->next[13] = segment->flags;
	if (work->timestamps_at && segment->has_timestamps) {
		put_word(work->next, work->timestamps_at, segment->value);
		put_word(work->next, work->timestamps_at + 4, segment->echo);
	}
	compose_sack(work, segment);
	return 0;
}

/* Writes the composed header into the packet. Returns -1 if the packet is half written. */
GLOBAL int write_header(struct __sk_buff *skb, __u32 at, struct splice_work *work)
{
	__u32 bytes;
	__s64 sum;

	if (!work)
		return -1;
	bytes = work->bytes;
	sum = bpf_csum_diff((__be32 *)work->now, HEADER_BUFFER, (__be32 *)work->next, HEADER_BUFFER,
			    0);
	/* All but the checksum. */
	if (bpf_skb_store_bytes(skb, at, work->next, 16, 0))
		return -1;
	if (bytes == sizeof(struct tcphdr) + USUAL_OPTIONS_BYTES) {
		if (bpf_skb_store_bytes(skb, at + 18, work->next + 18, 14, 0))
			return -1;
	} else if (bytes > sizeof(struct tcphdr) && bytes <= HEADER_BYTES_MAX) {
		if (bpf_skb_store_bytes(skb, at + 18, work->next + 18, bytes - 18, 0))
			return -1;
	}
	if (bpf_l4_csum_replace(skb, at + __builtin_offsetof(struct tcphdr, check), 0, sum, 0))
		return -1;
	__builtin_memcpy(work->now, work->next, sizeof(work->now));
	return 0;
}

/* Returns true if the composed header is the one in the packet. */
static __always_inline int is_unchanged(const struct splice_work *work)
{
	const __u64 *now = (const __u64 *)work->now, *next = (const __u64 *)work->next;
	__u64 difference = 0;

	for (int i = 0; i < HEADER_BUFFER / 8; i++)
		difference |= now[i] ^ next[i];
	return !difference;
}
