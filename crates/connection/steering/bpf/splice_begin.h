/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Begins a splice: by a request of the balancer's process (splice_control.h), or when the HTTP request leaves
 * the server's socket, if the process has asked for that. The latter costs no system call. */
#pragma once

#include "splice_socket.h"

/* Fills what the sockets know. */
static __always_inline void start_from(struct splice_start *start, const struct socket_state *client,
				       const struct socket_state *server)
{
	start->next = server->copied_seq;
	start->socket_next = server->rcv_nxt;
	start->written_end = client->write_seq;
	start->received = client->rcv_nxt;
}

/* Returns enum splice_unfit; SPLICE_FIT: nothing but the slots has a say. */
static __always_inline __u32 are_sockets_fit(const struct splice_server_slot *s,
					     const struct socket_state *client,
					     const struct socket_state *server)
{
	if (client->mss_cache < server->advmss)
		return SPLICE_SEGMENTS;
	/* Nothing came since the slot was opened, so the way to the server is not known. More will come: the
	 * server was not limited before. */
	return s->head.ifindex ? SPLICE_FIT : SPLICE_GRANTED;
}

/* Joins two slots, whose lock is held. Returns enum splice_unfit. */
static __always_inline __u32 join(struct splice_client_slot *c, __u32 client,
				  struct splice_server_slot *s, __u32 server,
				  const struct splice_start *start, struct splice_rule *rule,
				  __u64 now_ms)
{
	__u32 unfit;

	/* An acknowledgement without timestamps has no room for them. */
	if (s->flow.clock.is_used && !c->flow.clock.is_used)
		return SPLICE_TIMESTAMPS;
	unfit = splice_begin(&c->flow, &s->flow, start, &c->splice, rule, now_ms);
	if (unfit == SPLICE_FIT) {
		c->head.peer = server;
		s->head.peer = client;
	}
	return unfit;
}

/* Begins the splice that the process has asked for, with the first segment of the request, `work->segment`.
 * The outcome is in the slot. */
static __noinline int begin_with_request(struct __sk_buff *skb, struct splice_server_slot *s,
					 __u32 server, struct splice_work *work)
{
	__u32 client = s->wish.client, unfit, number = s->head.lock;
	struct splice_client_slot *c = bpf_map_lookup_elem(&splice_clients, &client);
	struct splice_lock *lock = bpf_map_lookup_elem(&splice_locks, &number);
	struct splice_start *start = &work->start;
	__u64 now_ms = time_ms();

	if (!c || !lock)
		return -1;
	__builtin_memset(&work->theirs, 0, sizeof(work->theirs));
	__builtin_memset(&work->ours, 0, sizeof(work->ours));
	if (!c->head.is_open || c->head.lock != number ||
	    !find_socket(skb, &c->head.key, &work->ours) ||
	    !find_socket(skb, &s->head.key, &work->theirs)) {
		s->wish.state = WISH_UNFIT;
		return -1;
	}
	__builtin_memset(start, 0, sizeof(*start));
	start_from(start, &work->ours, &work->theirs);
	start->request_end = work->segment.seq + s->wish.request_bytes;
	start->expected_bytes = s->wish.expected_bytes;
	start->awaits_head = 1;
	start->is_judged_here = 1;
	start->is_sealed = s->wish.is_sealed;
	unfit = are_sockets_fit(s, &work->ours, &work->theirs);
	bpf_spin_lock(&lock->lock);
	/* The process may have given up. */
	if (s->wish.state == WISH_MADE) {
		if (unfit == SPLICE_FIT)
			unfit = join(c, client, s, server, start, &work->rule, now_ms);
		s->wish.state = unfit == SPLICE_FIT ? WISH_BEGUN : WISH_UNFIT + unfit;
	}
	bpf_spin_unlock(&lock->lock);
	return 0;
}
