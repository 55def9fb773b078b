/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Heads of responses that may go to a client before the balancer has seen them: src/head.rs of the crate
 * `splice`. A test compares the two. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define HEAD_BYTES_MAX 1024
#define HEAD_STATUS_BYTES 13
#define HEAD_DIGITS_MAX 10
#define HEAD_RESPONSE_MAX (1u << 30)

/* The next byte is of ... */
enum head_state {
	HEAD_NAME,
	HEAD_SPACE,    /* before a value */
	HEAD_VALUE,    /* also the status line */
	HEAD_LINE_END, /* a line feed */
	HEAD_LAST,     /* the last line feed */
};

enum head_field {
	FIELD_OTHER,
	FIELD_LENGTH,
	FIELD_CONNECTION,
};

enum head_result {
	HEAD_OPEN,
	HEAD_FIT,
	HEAD_UNFIT,
};

/* A head while it is read: in memory, so that the verifier sees the same state for each byte. */
struct head_work {
	__u8 bytes[HEAD_BYTES_MAX];
	__u64 high; /* the last 16 characters of a name or value, in lower case */
	__u64 low;
	__u64 body_bytes;
	__u32 count; /* characters of the name or value */
	__u32 state;
	__u32 field;
	__u32 has_length;
	__u32 result;
	__u32 head_bytes;
	__u32 at;  /* the next byte */
	__u32 end; /* behind the last one */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct head_work);
} head_works SEC(".maps");

/* Characters of a name, the last one lowest. */
#define NAME2(a, b) ((__u64)(a) << 8 | (__u64)(b))
#define NAME4(a, b, c, d) (NAME2(a, b) << 16 | NAME2(c, d))
#define NAME8(a, b, c, d, e, f, g, h) (NAME4(a, b, c, d) << 32 | NAME4(e, f, g, h))

static __always_inline int is_keep_alive(const struct head_work *work)
{
	return work->count == 10 && work->high == NAME2('k', 'e') &&
	       work->low == NAME8('e', 'p', '-', 'a', 'l', 'i', 'v', 'e');
}

/* Begins a field with the name that was read. Returns 0 if the head is not fit. */
static __always_inline int head_begin_field(struct head_work *work)
{
	__u64 high = work->high, low = work->low;

	work->field = FIELD_OTHER;
	switch (work->count) {
	case 2: /* te */
		return low != NAME2('t', 'e');
	case 7: /* upgrade */
		return low != NAME8(0, 'u', 'p', 'g', 'r', 'a', 'd', 'e');
	case 10: /* connection, keep-alive */
		if (high == NAME2('c', 'o') && low == NAME8('n', 'n', 'e', 'c', 't', 'i', 'o', 'n'))
			work->field = FIELD_CONNECTION;
		return !is_keep_alive(work);
	case 14: /* content-length */
		if (high != NAME8(0, 0, 'c', 'o', 'n', 't', 'e', 'n') ||
		    low != NAME8('t', '-', 'l', 'e', 'n', 'g', 't', 'h'))
			return 1;
		work->field = FIELD_LENGTH;
		return !work->has_length;
	case 17: /* transfer-encoding, but for the first character */
		return high != NAME8('r', 'a', 'n', 's', 'f', 'e', 'r', '-') ||
		       low != NAME8('e', 'n', 'c', 'o', 'd', 'i', 'n', 'g');
	}
	return 1;
}

/* Ends a field. Returns 0 if the head is not fit. */
static __always_inline int head_end_field(struct head_work *work)
{
	if (work->field == FIELD_CONNECTION)
		return is_keep_alive(work);
	if (work->field != FIELD_LENGTH)
		return 1;
	work->has_length = 1;
	return work->count > 0;
}

static __always_inline void head_keep(struct head_work *work, __u8 byte)
{
	if (byte >= 'A' && byte <= 'Z')
		byte += 'a' - 'A';
	work->high = work->high << 8 | work->low >> 56;
	work->low = work->low << 8 | byte;
	work->count++;
}

static __always_inline void head_forget(struct head_work *work)
{
	work->high = 0;
	work->low = 0;
	work->count = 0;
}

static __always_inline int is_of_name(__u8 byte)
{
	__u8 lower = byte | 0x20;

	return (lower >= 'a' && lower <= 'z') || (byte >= '0' && byte <= '9') || byte == '-' ||
	       byte == '_';
}

/* Reads a character of a value. Returns 0 if the head is not fit. */
static __always_inline int head_value(struct head_work *work, __u8 byte)
{
	if ((byte < ' ' && byte != '\t') || byte > '~')
		return 0;
	if (work->field == FIELD_CONNECTION) {
		head_keep(work, byte);
	} else if (work->field == FIELD_LENGTH) {
		if (byte < '0' || byte > '9' || work->count >= HEAD_DIGITS_MAX)
			return 0;
		work->body_bytes = work->body_bytes * 10 + (byte - '0');
		work->count++;
	}
	return 1;
}

/* Reads a character of a name, or the end of the head. Returns 0 if the head is not fit. */
static __always_inline int head_name(struct head_work *work, __u8 byte)
{
	if (byte == ':' && work->count) {
		if (!head_begin_field(work))
			return 0;
		head_forget(work);
		work->state = HEAD_SPACE;
		return 1;
	}
	if (byte == '\r' && !work->count) {
		work->state = HEAD_LAST;
		return 1;
	}
	if (!is_of_name(byte))
		return 0;
	head_keep(work, byte);
	return work->count != 6 || work->low != NAME8(0, 0, 'p', 'r', 'o', 'x', 'y', '-');
}

/* Reads the byte with this number. Returns 0 if the head is not fit. */
static __always_inline int head_byte(struct head_work *work, __u32 at)
{
	__u8 byte = work->bytes[at & (HEAD_BYTES_MAX - 1)];

	switch (work->state) {
	case HEAD_SPACE:
		if (byte == ' ' || byte == '\t')
			return 1;
		work->state = HEAD_VALUE;
		/* fall through */
	case HEAD_VALUE:
		if (byte != '\r')
			return head_value(work, byte);
		work->state = HEAD_LINE_END;
		return head_end_field(work);
	case HEAD_LINE_END:
		head_forget(work);
		work->state = HEAD_NAME;
		return byte == '\n';
	case HEAD_NAME:
		return head_name(work, byte);
	}
	work->head_bytes = at + 1;
	work->result = HEAD_FIT;
	return byte == '\n' && work->has_length && at + 1 + work->body_bytes <= HEAD_RESPONSE_MAX;
}

struct head_context {
	struct head_work *work;
};

/* The same character in each of eight bytes. */
#define EIGHT(c) (0x0101010101010101ull * (c))

/* Returns true if the eight bytes are of a value: ' ' to '~'. */
static __always_inline int are_of_value(__u64 bytes)
{
	__u64 is_low = ~(bytes + EIGHT(0x80 - ' ')), is_high = bytes + EIGHT(0x80 - 0x7f);

	return !((bytes | is_low | is_high) & EIGHT(0x80));
}

static long head_next(__u32 index, struct head_context *context)
{
	struct head_work *work = context->work;
	__u32 at = work->at & (HEAD_BYTES_MAX - 1);

	if (work->at >= work->end)
		return 1;
	if (work->state == HEAD_VALUE && work->field == FIELD_OTHER &&
	    at + 8 <= HEAD_BYTES_MAX && at + 8 <= work->end &&
	    are_of_value(*(const __u64 *)(work->bytes + at))) {
		work->at = at + 8;
		return 0;
	}
	work->at = at + 1;
	if (!head_byte(work, at))
		work->result = HEAD_UNFIT;
	return work->result != HEAD_OPEN;
}

/* Reads the head of `count` bytes in `work`. Returns true if it is fit; its lengths are in `work`. */
static __always_inline int is_fit(struct head_work *work, __u32 count)
{
	struct head_context context = { .work = work };
	const __u8 *bytes = work->bytes;

	if (count <= HEAD_STATUS_BYTES ||
	    bpf_be64_to_cpu(*(const __be64 *)bytes) !=
		    NAME8('H', 'T', 'T', 'P', '/', '1', '.', '1') ||
	    bpf_ntohl(*(const __be32 *)(bytes + 8)) >> 8 != NAME4(0, ' ', '2', '0') ||
	    (bytes[11] != '0' && bytes[11] != '6') || bytes[12] != ' ')
		return 0;
	head_forget(work);
	work->state = HEAD_VALUE;
	work->field = FIELD_OTHER;
	work->has_length = 0;
	work->body_bytes = 0;
	work->result = HEAD_OPEN;
	work->at = HEAD_STATUS_BYTES;
	work->end = count;
	bpf_loop(count - HEAD_STATUS_BYTES, head_next, &context, 0);
	return work->result == HEAD_FIT;
}
