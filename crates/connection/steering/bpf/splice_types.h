/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The state that splice.h changes: the structures of the crate `splice`. */
#pragma once

#include <linux/types.h>

#define SACK_BLOCKS_MAX 4
/* src/splice.rs, src/pooled.rs, src/clock.rs of the crate. */
#define LENGTH_BYTES_MAX (1u << 30)
#define EDGE_BYTES_MAX (1 << 30)
#define CLOCK_MARGIN_MS 4
#define ACK_BEHIND_BYTES_MAX (1u << 16)

/* The layouts are pinned in src/raw.rs of the crate. */
struct splice_clock {
	__u32 is_used;
	__u32 shift;
	__u32 echoed;
	__u32 peer;
	__u32 value;
	__u32 reserved;
	__u64 at_ms;
};

struct splice_client {
	__u32 bypassed;
	__u32 sent_end;
	__u32 acked;
	__u32 socket_acked;
	__u32 window_bytes;
	__u32 window_max_bytes;
	__u32 scale;
	__u32 receive_max_bytes;
	__u32 received;
	__u32 window;
	__u32 is_reset;
	__u32 hold; /* enum splice_hold */
	struct splice_clock clock;
};

/* `Hold` of the crate. */
enum splice_hold {
	HOLD_OFF,
	HOLD_ARMED,
	HOLD_KEPT,
};

struct splice_server {
	__u32 bypassed;
	__u32 passed_end;
	__u32 acked;
	__u32 granted;
	__u32 socket_edge;
	__u32 request_end;
	__u32 scale;
	__u32 peer_seen;
	__u32 peer_value;
	__u32 limit_bytes;
	__u32 limit_end;
	__u32 told;
	__u64 peer_at_ms;
	struct splice_clock clock;
};

struct splice_state {
	__u32 is_active;
	__u32 first;
	__u32 end;
	__u32 has_end;
	__u32 delta;
	__u32 is_complete;
	__u32 owes_ack;
	__u32 awaits_head;
	__u32 head_bytes;
	__u32 clock_offset;
	__u32 forwarded_bytes;
	__u32 early_bytes;
	__u32 rule_ack;
	__u32 has_fin;
	__u32 status;
	__u32 is_sealed;
};

/* `Head` of the crate. */
struct splice_fit {
	__u32 head_bytes;
	__u32 response_bytes;
	__u32 status;
};

struct splice_segment {
	__u32 seq;
	__u32 ack;
	__u32 flags;
	__u32 window;
	__u32 payload_bytes;
	__u32 has_timestamps;
	__u32 value;
	__u32 echo;
	__u32 sack_count;
	__u32 sack[SACK_BLOCKS_MAX][2];
	__u32 is_copy;
};

/* `Start` of the crate. */
struct splice_start {
	__u32 next;
	__u32 socket_next;
	__u32 written_end;
	__u32 request_end;
	__u32 has_length;
	__u32 length_bytes;
	__u32 segment_bytes;
	__u32 awaits_head;
	__u32 expected_bytes;
	__u32 received;
	__u32 is_judged_here;
	__u32 is_sealed;
};

/* `Rule` of the crate, without what the caller knows. */
struct splice_rule {
	__u32 first;
	__u32 end;
	__u32 has_end;
	__u32 request_end;
	__u32 delta;
	__u32 ack;
	__u32 window;
	__u32 has_clock;
	__u32 clock_offset;
	__u32 echo;
	__u32 awaits_head;
	__u32 reserved;
};

/* `Unfit` of the crate. */
enum splice_unfit {
	SPLICE_FIT,
	SPLICE_WINDOW,
	SPLICE_GRANTED,
	SPLICE_TIMESTAMPS,
	SPLICE_GAP,
	SPLICE_OVER,
	SPLICE_LONG,
	SPLICE_SEGMENTS, /* decided in splice_control.h */
};

/* Where a segment goes. */
enum splice_way {
	SPLICE_TO_SOCKET = 1,
	SPLICE_TO_SERVER = 2,
	SPLICE_KEPT = 4, /* nowhere: what it tells is noted */
	SPLICE_TO_CLIENT = 8,
};

/* Outcome of the end. */
enum splice_ended {
	SPLICE_NOT_ENDED,
	SPLICE_ENDED,
	SPLICE_ENDED_OWING, /* an acknowledgement */
};
