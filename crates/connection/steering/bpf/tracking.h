/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Validation of segments. Forged packets of a flow pass here, too: a segment therefore updates the
 * tracked state of a connection only if a TCP with these bounds would accept it (RFC 5961) and its
 * checksum is right. src/tracking.rs has the same rule in Rust; a test compares the two. */
#pragma once

#include "checksum.h"
#include "maps.h"

#define UPDATE_ACK 1 /* it acknowledges more data or offers another window */
#define UPDATE_SEQ 2 /* it ends behind all earlier segments */
#define UPDATE_OLD 4 /* acceptable, but its acknowledgement is not the newest */

/* Returns the updates of a segment; 0 if there are none or it is not acceptable. Changes nothing.
 * */
static __always_inline __u32 evaluate(const struct tracked_state *tracked,
				      const struct segment *segment)
{
	__u32 window = tracked->receive_window, end = segment->seq + segment->payload;
	__u32 first = tracked->last_seq - window, update = 0;
	__s32 ahead = end - tracked->last_seq;
	__s32 acked = segment->ack - tracked->last_ack;

	if (!tracked->known || (segment->flags & (TCP_SYN | TCP_RST | TCP_ACK)) != TCP_ACK)
		return 0;
	if (segment->seq - first > 2 * window || end - first > 2 * window)
		return 0;
	if (acked > 0) {
		/* A service sends at most the client's window. */
		if ((__u32)acked > tracked->window_max)
			return 0;
		update = UPDATE_ACK;
	} else if (acked < 0) {
		if (-(__u32)acked > tracked->window_max)
			return 0;
		update = UPDATE_OLD;
	} else if (ahead >= 0 && segment->window != tracked->last_window) {
		update = UPDATE_ACK;
	}
	/* Saves the checksum of most segments of an upload, which update nothing else. */
	if (ahead > 0 && (update == UPDATE_ACK || (__u32)ahead >= window / 4))
		update |= UPDATE_SEQ;
	return update;
}

static __always_inline void apply(struct tracked_state *tracked, const struct segment *segment,
				  __u32 update)
{
	if (update & UPDATE_ACK) {
		__u32 window = (__u32)segment->window << (tracked->shift & 15);

		tracked->last_ack = segment->ack;
		tracked->last_window = segment->window;
		if (window > tracked->window_max)
			tracked->window_max = window;
	}
	if (update & UPDATE_SEQ) {
		__u32 end = segment->seq + segment->payload;
		/* A receiver opens its window at most by twice the received bytes. */
		__u32 window = tracked->receive_window + 2 * (end - tracked->last_seq);

		tracked->receive_window =
			window < tracked->receive_max ? window : tracked->receive_max;
		tracked->last_seq = end;
	}
}
