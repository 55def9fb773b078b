/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The translation of two connections of a balancer: the crate `splice` in C, function by function. A test
 * runs both on the same states and segments. Nothing here calls a helper, so a lock can be held. */
#pragma once

#include <linux/types.h>

#include "splice_segment.h"

/* Notes the timestamps of a segment from the peer. */
static __always_inline void clock_note(struct splice_clock *clock,
				       const struct splice_segment *segment)
{
	if (!segment->has_timestamps)
		return;
	if (!clock->is_used || before(clock->peer, segment->value))
		clock->peer = segment->value;
	if (!clock->is_used || before(clock->echoed, segment->echo))
		clock->echoed = segment->echo;
	clock->is_used = 1;
}

/* Changes the timestamps of a segment from the socket into those that the peer is to see. */
static __always_inline void clock_sent(struct splice_clock *clock, struct splice_segment *segment,
				       __u64 now_ms)
{
	if (!segment->has_timestamps)
		return;
	clock->value = segment->value;
	clock->at_ms = now_ms;
	if (clock->is_used && before(segment->value + clock->shift, clock->echoed))
		clock->shift = clock->echoed - segment->value;
	segment->value += clock->shift;
}

static __always_inline __u32 passed_ms(__u64 from_ms, __u64 now_ms)
{
	return now_ms > from_ms ? now_ms - from_ms : 0;
}

static __always_inline __u32 clock_now(const struct splice_clock *clock, __u64 now_ms)
{
	return clock->value + passed_ms(clock->at_ms, now_ms) + clock->shift;
}

static __always_inline __u32 client_edge(const struct splice_client *client)
{
	return client->acked + client->window_bytes;
}

static __always_inline int client_accepts(const struct splice_client *client,
					  const struct splice_segment *segment)
{
	__u32 end = segment->seq + segment->payload_bytes;

	return segment->flags & TCP_ACK &&
	       distance(segment->seq, client->received) <= client->receive_max_bytes &&
	       distance(end, client->received) <= client->receive_max_bytes &&
	       distance(segment->ack, client->acked) <= client->window_max_bytes;
}

/* Returns 0 if the acknowledgement is not the newest. */
static __always_inline int client_note(struct splice_client *client,
				       const struct splice_segment *segment)
{
	if (before(segment->ack, client->acked))
		return 0;
	client->acked = segment->ack;
	client->window_bytes = segment->window << (client->scale & 15);
	if (client->window_max_bytes < client->window_bytes)
		client->window_max_bytes = client->window_bytes;
	return 1;
}

/* Returns the end of what the socket has sent, if the bytes before `socket_end` come from nobody else: it has
 * sent those that the client has acknowledged. */
static __always_inline __u32 client_sent_by_socket(const struct splice_client *client,
						   __u32 socket_end)
{
	return later(client->sent_end, earlier(client->acked, socket_end));
}

static __always_inline void client_for_socket(struct splice_client *client,
					      struct splice_segment *segment)
{
	__u32 end = client->sent_end, ack = earlier(segment->ack, end);

	client->socket_acked = later(client->socket_acked, ack);
	segment->ack = ack - client->bypassed;
	sack_before(segment, end, client->bypassed);
	clock_note(&client->clock, segment);
	segment->echo -= client->clock.shift;
}

static __always_inline void client_unchecked(const struct splice_client *client,
					     struct splice_segment *segment)
{
	segment->ack -= client->bypassed;
	sack_less(segment, client->bypassed);
	segment->echo -= client->clock.shift;
}

/* Returns true if the client's socket has sent all bytes before the splice. */
static __always_inline int splice_is_ahead(const struct splice_client *client,
					   const struct splice_state *splice)
{
	return !before(client->sent_end, splice->first + splice->delta);
}

/* A segment of the client's socket. `splice`: NULL without one. Returns 0 if it is kept. */
static __always_inline int splice_send_to_client(struct splice_client *client,
						 const struct splice_state *splice,
						 struct splice_segment *segment, __u64 now_ms)
{
	int is_spliced = splice && splice->is_active;
	int is_ahead = is_spliced && splice_is_ahead(client, splice);
	int is_ack = is_pure_ack(segment);
	int is_kept = client->hold == HOLD_ARMED && is_ack && !segment->sack_count &&
		      before(client->received, segment->ack) && !is_spliced;

	if (is_kept)
		client->hold = HOLD_KEPT;
	else if (client->hold == HOLD_KEPT)
		client->hold = HOLD_OFF;
	segment->seq += client->bypassed;
	clock_sent(&client->clock, segment, now_ms);
	if ((segment->flags & (TCP_ACK | TCP_SYN)) == TCP_ACK) {
		client->received = later(client->received, segment->ack);
		client->window = segment->window;
	}
	client->sent_end = later(client->sent_end, segment->seq + segment->payload_bytes);
	if (segment->payload_bytes)
		client->socket_acked = earlier(client->socket_acked, segment->seq);
	/* A reset is exact, or the client ignores it (RFC 5961 §3.2). */
	if (segment->flags & TCP_RST) {
		segment->seq = later(segment->seq, client->acked);
		client->is_reset = 1;
	}
	/* A socket that has bytes left keeps its numbers: the client has to answer the probe of a window that was
	 * closed (RFC 9293 §3.8.6.1). */
	if (!is_ahead || !is_ack)
		return !is_kept;
	segment->seq = later(segment->seq,
			     client->window_bytes ? client_edge(client) - 1 : client->acked);
	if (segment->has_timestamps)
		segment->value += 2 * CLOCK_MARGIN_MS;
	return 1;
}

/* Makes the acknowledgement for the client that is kept. Returns 0 if none is. */
static __always_inline int client_kept_ack(struct splice_client *client,
					   struct splice_segment *segment, __u64 now_ms)
{
	int is_kept = client->hold == HOLD_KEPT;

	client->hold = HOLD_OFF;
	if (!is_kept)
		return 0;
	segment->seq = later(client->sent_end, client->acked);
	segment->ack = client->received;
	segment->flags = TCP_ACK;
	segment->window = client->window;
	segment->payload_bytes = 0;
	segment->sack_count = 0;
	segment->is_copy = 0;
	segment->has_timestamps = client->clock.is_used;
	segment->value = client->clock.is_used ? clock_now(&client->clock, now_ms) : 0;
	segment->echo = client->clock.is_used ? client->clock.peer : 0;
	return 1;
}

static __always_inline void server_note_clocks(struct splice_server *server,
					       const struct splice_segment *segment, __u64 now_ms)
{
	if (!segment->has_timestamps)
		return;
	server->peer_seen = 1;
	server->peer_value = segment->value;
	server->peer_at_ms = now_ms;
	clock_note(&server->clock, segment);
}

/* A segment of the server. Returns 0 if it is dropped. */
static __always_inline int server_for_socket(struct splice_server *server, int is_spliced,
					     struct splice_segment *segment, __u64 now_ms)
{
	__u32 end = segment->seq + segment->payload_bytes;
	int is_known = !before(server->socket_edge, end) &&
		       (__s32)(segment->seq - server->passed_end) >= -EDGE_BYTES_MAX;

	if (is_known)
		server_note_clocks(server, segment, now_ms);
	if (is_spliced && before(server->passed_end, segment->seq)) {
		if (segment->flags & TCP_RST)
			segment->seq = server->passed_end;
		else if (segment->payload_bytes || segment->flags & (TCP_FIN | TCP_SYN))
			return 0;
		else
			segment->seq = server->passed_end + 1;
	}
	if (is_spliced && segment->payload_bytes && !is_known)
		return 0;
	if (is_known && segment->payload_bytes && !(segment->flags & TCP_SYN))
		server->passed_end = later(server->passed_end, end);
	segment->seq -= server->bypassed;
	return 1;
}

static __always_inline __u32 server_window_to(const struct splice_server *server, __u32 edge,
					      __u32 ack)
{
	__u32 window = before(edge, ack) ? 0 : (edge - ack) >> (server->scale & 15);

	return window > 0xffff ? 0xffff : window;
}

static __always_inline void server_grant(struct splice_server *server, __u32 ack, __u32 window)
{
	__u32 edge = ack + (window << (server->scale & 15));

	if (before(server->acked, ack))
		server->told = edge;
	else
		server->told = later(server->told, edge);
	server->acked = later(server->acked, ack);
	server->granted = later(server->granted, edge);
}

/* Returns the newest value of the server's clock that has arrived, at least `known`: segments that went to the
 * client directly were seen by nobody here, but the client echoes their values. An older echo would make a
 * retransmission seem needless to the server (RFC 3522), and its round trips long. */
static __always_inline __u32 splice_echo(const struct splice_client *client,
					 const struct splice_server *server,
					 const struct splice_state *splice, __u32 known,
					 __u64 now_ms)
{
	__u32 theirs = server->peer_value + passed_ms(server->peer_at_ms, now_ms);
	__u32 echoed = earlier(client->clock.echoed - splice->clock_offset, theirs);

	return client->clock.is_used && server->peer_seen ? later(known, echoed) : known;
}

/* Returns the number behind the last byte that the server may send. */
static __always_inline __u32 splice_edge(const struct splice_client *client,
					 const struct splice_server *server,
					 const struct splice_state *splice)
{
	__u32 edge = client_edge(client) - splice->delta;

	if (!splice_is_ahead(client, splice))
		return earlier(edge, server->granted);
	/* If the head is not fit, all of it comes to the socket. With a limit it is little, so that the first
	 * segment is short: the server's host grants the rest. If the head is judged here, it is what is
	 * expected, since what is granted beyond the response stays for the next one. */
	if (splice->awaits_head) {
		edge = earlier(edge, server->socket_edge);
		return server->limit_bytes ? earlier(edge, splice->first + splice->early_bytes +
								   server->limit_bytes) :
					     edge;
	}
	/* A window cannot become smaller again: the next response has the limit. */
	if (splice->has_end && server->limit_bytes)
		return earlier(edge, splice->end + server->limit_bytes);
	return edge;
}

/* A segment of the server's socket. `client` is not read without a splice. */
static __always_inline void splice_send_to_server(const struct splice_client *client,
						  struct splice_server *server,
						  const struct splice_state *splice,
						  struct splice_segment *segment, __u64 now_ms)
{
	__u32 end = segment->seq + segment->payload_bytes;
	int is_new = segment->payload_bytes && before(server->request_end, end);

	segment->ack += server->bypassed;
	sack_less(segment, -server->bypassed);
	clock_sent(&server->clock, segment, now_ms);
	server->request_end = later(server->request_end, end);
	server->socket_edge = later(server->socket_edge,
				    segment->ack + (segment->window << (server->scale & 15)));
	if (is_new && !splice->is_active) {
		/* The last bytes of a response may have passed before the slot was open, and reached the socket
		 * afterwards. */
		server->passed_end = later(server->passed_end, segment->ack);
		server->limit_end = server->passed_end + server->limit_bytes;
	}
	if (splice->is_active) {
		__u32 acked = later(splice->first, client->acked - splice->delta);

		if (splice->has_end)
			acked = earlier(acked, splice->end);
		if (splice->awaits_head)
			acked = splice->first;
		if (segment->has_timestamps && before(segment->ack, acked))
			segment->echo = splice_echo(client, server, splice, segment->echo, now_ms);
		segment->ack = later(segment->ack, acked);
		segment->window = server_window_to(server, splice_edge(client, server, splice),
						   segment->ack);
	} else if (server->limit_bytes && !(segment->flags & TCP_SYN)) {
		__u32 window = server_window_to(server, server->limit_end, segment->ack);

		if (segment->window > window)
			segment->window = window;
	}
	if (!(segment->flags & TCP_SYN))
		server_grant(server, segment->ack, segment->window);
}

/* Makes an acknowledgement. The blocks of `segment` stay. */
static __always_inline void server_ack(const struct splice_server *server, __u32 ack, __u32 window,
				       struct splice_segment *segment, __u64 now_ms)
{
	segment->seq = server->request_end;
	segment->ack = ack;
	segment->flags = TCP_ACK;
	segment->window = window;
	segment->payload_bytes = 0;
	segment->is_copy = 0;
	segment->has_timestamps = server->clock.is_used;
	segment->value = server->clock.is_used ? clock_now(&server->clock, now_ms) : 0;
	segment->echo = server->clock.is_used ? server->clock.peer : 0;
}

/* Lets the server send the rest of a response that is relayed, from the socket's number `next` on. */
static __always_inline void server_extend(struct splice_server *server, __u32 next, __u32 bytes)
{
	server->limit_end = next + server->bypassed + bytes + server->limit_bytes;
}

/* Makes the acknowledgement that tells the server of the socket's room after the limit has ended or was
 * extended. */
static __always_inline void server_room(struct splice_server *server,
					struct splice_segment *segment, __u64 now_ms)
{
	__u32 edge = server->limit_bytes ? earlier(server->socket_edge, server->limit_end) :
					   server->socket_edge;
	__u32 window = server_window_to(server, edge, server->acked);

	server_grant(server, server->acked, window);
	segment->sack_count = 0;
	server_ack(server, server->acked, window, segment, now_ms);
}

/* Makes an acknowledgement with the client's window. The blocks of `segment` stay. */
static __always_inline void splice_ack_for(const struct splice_client *client,
					   struct splice_server *server,
					   const struct splice_state *splice, __u32 ack,
					   struct splice_segment *segment, __u64 now_ms)
{
	__u32 window = server_window_to(server, splice_edge(client, server, splice), ack);

	server_grant(server, ack, window);
	server_ack(server, ack, window, segment, now_ms);
	if (segment->has_timestamps)
		segment->echo = splice_echo(client, server, splice, segment->echo, now_ms);
}

static __always_inline void splice_note_end(const struct splice_client *client,
					    struct splice_state *splice)
{
	if (splice->has_end && !before(client->acked, splice->end + splice->delta))
		splice->is_complete = 1;
}

/* Makes a segment that comes after the socket's reset another one, for the client: the socket's was not exact for
 * a client with newer bytes, and the socket may be on its way out, and say nothing. A SYN begins another
 * connection. Returns 0 for another segment. */
static __always_inline int client_reset_again(struct splice_client *client,
					      struct splice_segment *segment)
{
	if (segment->flags & TCP_SYN)
		client->is_reset = 0;
	if (!client->is_reset || !is_pure_ack(segment))
		return 0;
	segment->seq = segment->ack;
	segment->ack = 0;
	segment->flags = TCP_RST;
	segment->window = 0;
	segment->sack_count = 0;
	return 1;
}

/* A connection begins with the addresses of an earlier one: its numbers are those of the sockets. */
static __always_inline void client_renew(struct splice_client *client)
{
	__builtin_memset(client, 0, sizeof(*client));
}

static __always_inline void server_renew(struct splice_server *server)
{
	__builtin_memset(server, 0, sizeof(*server));
}

/* A segment of the client, without a splice. Returns enum splice_way. */
static __always_inline int client_receive(struct splice_client *client,
					  struct splice_segment *segment)
{
	if (client_reset_again(client, segment))
		return SPLICE_TO_CLIENT;
	if (!client_accepts(client, segment)) {
		client_unchecked(client, segment);
		return SPLICE_TO_SOCKET;
	}
	client_note(client, segment);
	if (before(client->sent_end, segment->ack))
		client_unchecked(client, segment);
	else
		client_for_socket(client, segment);
	return SPLICE_TO_SOCKET;
}

/* A segment of the client during a splice: `segment` becomes the one for the socket, `ack` the one
 * for the server. Returns a set of enum splice_way. */
static __always_inline int splice_receive_from_client(struct splice_client *client,
						      struct splice_server *server,
						      struct splice_state *splice,
						      struct splice_segment *segment,
						      struct splice_segment *ack, __u64 now_ms)
{
	__u32 direct = splice->first + splice->delta, sent_end, number;
	__u32 relayed = server->passed_end + splice->delta;
	int is_newest, ways, is_ack = is_pure_ack(segment);

	/* A reset for bytes that came after the client's end, or the SYN of another connection. The socket
	 * judges its number, which is not translated. That of a reset is what the bytes acknowledged: the
	 * socket may have more, at least the client's FIN. */
	if (segment->flags & (TCP_RST | TCP_SYN) && !(segment->flags & TCP_ACK)) {
		if (segment->flags & TCP_SYN)
			client->is_reset = 0;
		if (segment->flags & TCP_RST && segment->seq == splice->rule_ack)
			segment->seq = client->received;
		return SPLICE_TO_SOCKET;
	}
	if (client_reset_again(client, segment))
		return SPLICE_TO_CLIENT;
	if (!client_accepts(client, segment))
		return 0;
	is_newest = client_note(client, segment);
	clock_note(&client->clock, segment);
	sent_end = client->sent_end = client_sent_by_socket(client, direct);
	ways = !is_ack || !before(sent_end, segment->ack) ||
			       before(client->socket_acked, sent_end) || !is_newest ?
		       SPLICE_TO_SOCKET :
		       0;
	number = later(server->acked, later(segment->ack, direct) - splice->delta);
	*ack = *segment;
	sack_from(ack, later(direct, segment->ack), splice->delta);
	/* The client gets bytes that the server's socket has from here: for the server they are no gap. */
	if (before(direct, relayed) && before(segment->ack, relayed))
		ack->sack_count = 0;
	int is_news = !before(segment->ack, direct) || ack->sack_count;

	if (ways)
		client_for_socket(client, segment);
	splice_note_end(client, splice);
	if (!is_ack) {
		splice->owes_ack |= before(server->acked, number);
		return ways;
	}
	if (!is_news || !is_newest)
		return ways;
	if (splice->awaits_head) {
		splice->owes_ack = 1;
		return ways | SPLICE_KEPT;
	}
	splice->owes_ack = 0;
	splice_ack_for(client, server, splice, number, ack, now_ms);
	return ways | SPLICE_TO_SERVER;
}

/* Makes the acknowledgement that the server lacks. Returns 0 if it lacks none. */
static __always_inline int splice_owed_ack(const struct splice_client *client,
					   struct splice_server *server,
					   struct splice_state *splice, struct splice_segment *ack,
					   __u64 now_ms)
{
	if (!splice->owes_ack || splice->awaits_head || !splice_is_ahead(client, splice))
		return 0;
	splice->owes_ack = 0;
	ack->sack_count = 0;
	splice_ack_for(client, server, splice, later(server->acked, client->acked - splice->delta), ack,
		       now_ms);
	return 1;
}

/* Makes the acknowledgement that lets the server send a response whose head is fit. */
static __always_inline void splice_grant_early(const struct splice_client *client,
					       struct splice_server *server,
					       const struct splice_state *splice,
					       __u32 expected_bytes, struct splice_segment *ack,
					       __u64 now_ms)
{
	__u32 expected_end = splice->first + expected_bytes + server->limit_bytes;
	__u32 window = server_window_to(
		server, earlier(client_edge(client) - splice->delta, expected_end), splice->first);

	server_grant(server, splice->first, window);
	ack->sack_count = 0;
	server_ack(server, splice->first, window, ack, now_ms);
}

/* Returns true if the segment is of the response, and ends behind what the socket has of it. */
static __always_inline int splice_is_past_socket(const struct splice_server *server,
						 const struct splice_state *splice,
						 const struct splice_segment *segment)
{
	__u32 seq = segment->seq, end = seq + segment->payload_bytes;

	return splice->has_end && !splice->awaits_head && is_plain(segment->flags & ~TCP_FIN) &&
	       !before(seq, splice->first) && before(server->passed_end, end) &&
	       !before(splice->end, end) && (segment->payload_bytes || seq != splice->end) &&
	       server->request_end - segment->ack <= ACK_BEHIND_BYTES_MAX;
}

/* Returns true if the segment has bytes that the client's host can have as they are. */
static __always_inline int splice_is_for_client(const struct splice_client *client,
						const struct splice_segment *segment)
{
	return segment->payload_bytes && !segment->is_copy && !segment->sack_count &&
	       (segment->has_timestamps || !client->clock.is_used);
}

/* Makes a segment of the server the client's, as its host does with a rule. */
static __always_inline void splice_forward(const struct splice_client *client,
					   struct splice_server *server,
					   struct splice_state *splice,
					   struct splice_segment *segment)
{
	clock_note(&server->clock, segment);
	splice->forwarded_bytes += segment->payload_bytes;
	segment->seq += splice->delta;
	/* The socket had the whole request, and may not have acknowledged it yet. */
	segment->ack = later(client->received, splice->rule_ack);
	segment->window = client->window;
	/* The server sends it again, when the socket can take it. */
	segment->flags &= ~TCP_FIN;
	segment->has_timestamps = !!client->clock.is_used;
	if (!segment->has_timestamps)
		return;
	segment->value += splice->clock_offset;
	segment->echo = client->clock.peer;
}

/* `is_granted`: the server may send the response already. */
static __always_inline void splice_learn_length(const struct splice_client *client,
						struct splice_state *splice, __u32 length_bytes,
						int is_granted)
{
	splice->end = splice->first + length_bytes;
	splice->has_end = 1;
	splice->owes_ack |= splice->awaits_head && !is_granted;
	/* The process reads the head and the end as soon as the head is not awaited. */
	asm volatile("" ::: "memory");
	splice->awaits_head = 0;
	splice_note_end(client, splice);
}

static __always_inline void splice_set_length(const struct splice_client *client,
					      struct splice_state *splice, __u32 length_bytes)
{
	splice_learn_length(client, splice, length_bytes, 0);
}

/* Takes the first segment of a response, with a fit head at its start, or the copy of that head. The segment
 * becomes the client's, unless it is a copy; `ack` becomes the socket's, without the payload. Returns a set of
 * enum splice_way; 0: it is another segment. */
static __always_inline int splice_receive_head(const struct splice_client *client,
					       struct splice_server *server,
					       struct splice_state *splice,
					       struct splice_segment *segment,
					       struct splice_segment *ack,
					       const struct splice_fit *head, __u64 now_ms)
{
	__u32 bytes = segment->payload_bytes;
	int is_copy = segment->is_copy;

	if (is_copy && bytes != head->head_bytes)
		return 0;
	if (!is_copy && (bytes < head->head_bytes || bytes > head->response_bytes ||
			 !splice_is_for_client(client, segment)))
		return 0;
	if (!splice->awaits_head || segment->seq != splice->first ||
	    server->passed_end != splice->first || !is_plain(segment->flags & ~TCP_FIN) ||
	    server->request_end - segment->ack > ACK_BEHIND_BYTES_MAX ||
	    before(server->socket_edge, segment->seq + bytes))
		return 0;
	*ack = *segment;
	ack->payload_bytes = 0;
	ack->is_copy = 0;
	ack->flags &= ~TCP_FIN;
	if (!server_for_socket(server, 1, ack, now_ms))
		return 0;
	splice->head_bytes = head->head_bytes;
	splice->status = head->status;
	if (segment->flags & TCP_FIN)
		splice->has_fin = 1;
	/* The server's host has granted the rest behind a copied head; the request all of it otherwise. */
	splice_learn_length(client, splice, head->response_bytes, is_copy || splice->early_bytes);
	if (is_copy)
		return SPLICE_TO_SOCKET;
	splice_forward(client, server, splice, segment);
	return SPLICE_TO_CLIENT | SPLICE_TO_SOCKET;
}

/* Takes the header of a sealed response, a segment of its own, which goes to the socket: the `records_bytes` bytes
 * behind it are the client's. Returns 0 if it is another segment. */
static __always_inline int splice_receive_header(const struct splice_client *client,
						 struct splice_server *server,
						 struct splice_state *splice,
						 struct splice_segment *segment,
						 __u32 records_bytes, __u64 now_ms)
{
	__u32 bytes = segment->payload_bytes;

	if (!splice->awaits_head || !splice->is_sealed || segment->is_copy ||
	    segment->seq != splice->first || server->passed_end != splice->first ||
	    !is_plain(segment->flags) || !bytes ||
	    server->request_end - segment->ack > ACK_BEHIND_BYTES_MAX ||
	    before(server->socket_edge, segment->seq + bytes))
		return 0;
	if (!server_for_socket(server, 1, segment, now_ms))
		return 0;
	splice->first += bytes;
	splice->delta -= bytes;
	splice_learn_length(client, splice, records_bytes, splice->early_bytes);
	return SPLICE_TO_SOCKET;
}

/* A segment of the server during a splice. Returns enum splice_way; 0: it is dropped. */
static __always_inline int splice_receive_from_server(const struct splice_client *client,
						      struct splice_server *server,
						      struct splice_state *splice,
						      struct splice_segment *segment, __u64 now_ms)
{
	__u32 seq = segment->seq;

	if (splice->is_complete && segment->payload_bytes && splice->has_end &&
	    before(seq, splice->end))
		return 0;
	/* The client has been sent the bytes of a copy. Only a socket that was given the beginning of the
	 * head has to have the rest.
	 */
	if (segment->is_copy && segment->payload_bytes && !splice->awaits_head &&
	    !before(seq, splice->first))
		return 0;
	if (segment->flags & TCP_FIN && !before(seq, splice->first) &&
	    server->request_end - segment->ack <= ACK_BEHIND_BYTES_MAX)
		splice->has_fin = 1;
	if (splice_is_past_socket(server, splice, segment)) {
		if (!segment->payload_bytes && segment->flags & TCP_FIN) {
			/* Behind what the socket has, it would wait there for bytes that went to the client. */
			segment->seq = server->passed_end - server->bypassed;
			return SPLICE_TO_SOCKET;
		}
		if (splice_is_for_client(client, segment)) {
			splice_forward(client, server, splice, segment);
			return SPLICE_TO_CLIENT;
		}
	}
	return server_for_socket(server, 1, segment, now_ms) ? SPLICE_TO_SOCKET : 0;
}

/* Returns enum splice_unfit; nothing has changed but for SPLICE_FIT. */
static __always_inline int splice_begin(struct splice_client *client,
					const struct splice_server *server,
					const struct splice_start *start, struct splice_state *splice,
					struct splice_rule *rule, __u64 now_ms)
{
	__u32 first = start->next + server->bypassed;
	__u32 written = start->written_end + client->bypassed, delta = written - first;
	__u32 bytes = start->has_length ? start->length_bytes : start->expected_bytes;
	__u32 sent_end = client_sent_by_socket(client, written);
	int is_early = before(server->request_end, start->request_end);

	if (start->socket_next != server->passed_end - server->bypassed)
		return SPLICE_GAP;
	if ((start->has_length || start->awaits_head) && !bytes)
		return SPLICE_OVER;
	if ((start->has_length || start->awaits_head) && bytes > LENGTH_BYTES_MAX)
		return SPLICE_LONG;
	if (!is_early && start->segment_bytes && !before(server->told, server->passed_end) &&
	    server->told - server->passed_end >= start->segment_bytes)
		return SPLICE_GRANTED;
	if ((start->awaits_head && before(sent_end, written)) ||
	    before(client_edge(client), server->granted + delta))
		return SPLICE_WINDOW;
	if (client->clock.is_used && !server->peer_seen)
		return SPLICE_TIMESTAMPS;
	rule->has_clock = client->clock.is_used;
	rule->clock_offset = 0;
	rule->echo = 0;
	if (client->clock.is_used) {
		__u32 theirs = server->peer_value + passed_ms(server->peer_at_ms, now_ms);

		rule->clock_offset = clock_now(&client->clock, now_ms) + CLOCK_MARGIN_MS - theirs;
		rule->echo = client->clock.peer;
	}
	client->sent_end = sent_end;
	splice->is_active = 1;
	splice->first = first;
	splice->has_end = !!start->has_length;
	splice->end = start->has_length ? first + start->length_bytes : 0;
	splice->delta = delta;
	splice->is_complete = 0;
	splice->owes_ack = !is_early;
	splice->awaits_head = start->awaits_head;
	splice->head_bytes = 0;
	splice->status = 0;
	splice->clock_offset = rule->clock_offset;
	splice->forwarded_bytes = 0;
	splice->early_bytes = start->awaits_head && start->is_judged_here ? start->expected_bytes : 0;
	splice->is_sealed = start->awaits_head && start->is_sealed;
	rule->awaits_head = start->awaits_head;
	rule->first = first;
	rule->end = splice->end;
	rule->has_end = splice->has_end;
	rule->request_end = start->request_end;
	rule->delta = delta;
	rule->ack = later(client->received, start->received);
	rule->window = client->window;
	splice->rule_ack = rule->ack;
	splice->has_fin = 0;
	return SPLICE_FIT;
}

/* Returns enum splice_ended; `ack` is for the server if it is owed one. */
static __always_inline int splice_end(struct splice_client *client, struct splice_server *server,
				      struct splice_state *splice, __u32 socket_next,
				      __u32 written_end, int *is_reusable,
				      struct splice_segment *ack, __u64 now_ms)
{
	__u32 written = written_end + client->bypassed, end = splice->end;
	__u32 at_client = end + splice->delta;
	int owes;

	if (!splice->is_active || !splice->has_end || !splice->is_complete ||
	    written != client->sent_end)
		return SPLICE_NOT_ENDED;
	*is_reusable = socket_next == server->passed_end - server->bypassed && !splice->has_fin;
	owes = before(server->acked, end);
	if (owes) {
		ack->sack_count = 0;
		splice_ack_for(client, server, splice, end, ack, now_ms);
	}
	client->bypassed += at_client - written;
	client->sent_end = at_client;
	client->socket_acked = at_client;
	client->clock.shift += 2 * CLOCK_MARGIN_MS;
	server->bypassed += end - server->passed_end;
	server->passed_end = end;
	/* Until the next request, too: without a window the server could not even end its connection. */
	server->limit_end = end + server->limit_bytes;
	splice->is_active = 0;
	return owes ? SPLICE_ENDED_OWING : SPLICE_ENDED;
}

/* Returns 1 if the splice has ended: nothing else was left to do, and the server's socket was given nothing. */
static __always_inline int splice_end_if_over(struct splice_client *client,
					      struct splice_server *server,
					      struct splice_state *splice,
					      struct splice_segment *ack, __u64 now_ms)
{
	int is_reusable;

	if (server->passed_end != splice->first ||
	    client->sent_end != splice->first + splice->delta || splice->has_fin ||
	    before(server->acked, splice->end))
		return 0;
	return splice_end(client, server, splice, server->passed_end - server->bypassed,
			  client->sent_end - client->bypassed, &is_reusable, ack,
			  now_ms) == SPLICE_ENDED;
}
