/*
 * The copy service as a model, part 3: a thread of the client, which interprets a program, and
 * copies itself what it waits for. The program obeys the guidelines of csync: before a destination
 * is read or written, and before a source is written, what is pending there is synced.
 */
#define SUBMIT 1 /* copy x to y; z: flags */
#define READ 2   /* sync and read segment y of buffer x */
#define WRITE 3  /* sync and write segment y of buffer x */
#define ABORT 4  /* abort the newest task that writes buffer x */
#define TELL 5   /* let the other threads know what was submitted */
#define HEAR 6
#define END 7
#define FINISH 8

#define LAZY 1
#define HANDLER 2

short program[THREADS * LENGTH];
byte length; /* while a program is written */
bit told;

#define OP(kind, x, y, z) program[length] = kind * 256 + (x) * 32 + (y) * 4 + z; length++
#define CODE program[me * LENGTH + pc]
#define KIND (CODE >> 8)
#define X ((CODE >> 5) & 7)
#define Y ((CODE >> 2) & 7)
#define Z (CODE & 3)

/* The pending tasks that the operation has to wait for. A copy that this thread makes itself, for
 * want of a service, waits for all that it depends on. */
#define RELEVANT(t) \
	((KIND == READ && dst[t] == X) || (KIND == WRITE && (dst[t] == X || src[t] == X)) || \
	 (KIND == SUBMIT && (dst[t] == Y || src[t] == Y || dst[t] == X)) || KIND == FINISH)

#define FULL (head - tail >= SLOTS)
#if HANDLERS
#define IS_DUE(i) (state[i] == DUE)
#if SLOTS == 2
#define SOME_DUE (IS_DUE(0) || IS_DUE(1))
#else
#define SOME_DUE (IS_DUE(0) || IS_DUE(1) || IS_DUE(2))
#endif
#else
#define SOME_DUE 0
#endif

#define SETTLED(t) (t >= head || WHOLE(t))
#if TASKS == 2
#define ALL_WHOLE (SETTLED(0) && SETTLED(1))
#elif TASKS == 3
#define ALL_WHOLE (SETTLED(0) && SETTLED(1) && SETTLED(2))
#else
#define ALL_WHOLE (SETTLED(0) && SETTLED(1) && SETTLED(2) && SETTLED(3))
#endif
#if RETIRES
#define COMPLETE (ALL_WHOLE && tail == head)
#else
#define COMPLETE ALL_WHOLE
#endif

#ifdef BUG_RECOVERY_RUNS_UNDONE_HANDLER
#define FINISHED(t) 1
#else
#define FINISHED(t) (done_gen[SLOT(t)] == GEN(t) && WHOLE(t))
#endif

/* Which task's segment s is the one to make: u, whose fields are those of f; or NONE. From the
 * newest that is relevant down to something that waits for nobody. */
inline look_over() {
	u = NONE;
	k = lim;
	do
	:: k == 0 -> break
	:: else ->
		k--;
		if
		:: u == NONE ->
			if
			:: RELEVANT(k) && !DONE(k, s) -> u = k; f = k
			:: else
			fi
#ifdef BUG_WAITER_IGNORES_OLDER
		:: else
#elif defined(BUG_UNPUBLISHED_LINE_READ)
		:: else ->
#else
		/* Not written yet, or another generation by now: nothing to wait for. */
		:: u != NONE && line[SLOT(k)] != GEN(k)
		:: u != NONE && line[SLOT(k)] == GEN(k) ->
#endif
#ifndef BUG_WAITER_IGNORES_OLDER
			t = body[SLOT(k)];
			if
			:: t > 0 && DEPENDS(t - 1, f) && !DONE(k, s) -> u = k; f = t - 1
			:: else
			fi;
			t = 0
#endif
		fi
	od
}

inline run_handler(t) {
	d_step {
		assert(ran[t] == 0);
		ran[t]++;
		k = 0;
		do
		:: k == t -> break
		:: else -> assert((src[k] != src[t] && dst[k] != src[t]) || WHOLE(k)); k++
		od;
		k = 0;
		do
		:: k == SEGS -> break
		:: else ->
			assert(reading[CELL(src[t], k)] == 0 && !writing[CELL(src[t], k)]);
			mem[CELL(src[t], k)] = FREED;
			want[CELL(src[t], k)] = ANY;
			k++
		od;
		k = 0
	}
}

proctype client(byte me) {
	byte pc, lim, t, u, f, k, s, value;
#if OURS
	byte was_claimed, was_ours, was_gen;
#endif
	bit copying;

next:
	atomic {
		if
		:: KIND == SUBMIT && !recovered -> goto submit
		:: KIND == SUBMIT && recovered -> s = 0; goto sync
		:: KIND == READ || KIND == WRITE -> s = Y; goto sync
		:: KIND == TELL -> told = 1; pc++; goto next
		:: KIND == HEAR && told -> lim = head; pc++; goto next
		:: KIND == END -> ended++; pc++; goto next
		:: KIND == FINISH && ended == THREADS && COMPLETE -> goto finished
#if ABORTS
		:: KIND == ABORT -> goto abort
#endif
#if HANDLERS
		:: SOME_DUE -> goto post
#endif
#if DEATH
		:: KIND == FINISH && recovered -> s = 0; goto sync
		:: NOTICED -> goto recover
#endif
		fi
	}

submit:
	atomic {
		if
		:: !FULL ->
			t = head;
			dst[t] = Y;
			src[t] = X;
			lazy = lazy | ((Z & 1) << t);
			handlers = handlers | ((Z >> 1) << t);
			head++;
			lim = head;
			copy_wanted(Y, X)
		:: else -> waiting++; goto crowded
		fi
	}
	/* Progress first, the generation of the line last. */
#ifdef BUG_LINE_BEFORE_PROGRESS
	LINE { body[SLOT(t)] = GEN(t); line[SLOT(t)] = GEN(t) }
#endif
	LINE {
		d_step { claim[SLOT(t)] = 0; claim_gen[SLOT(t)] = GEN(t) }
		d_step { done[SLOT(t)] = 0; done_gen[SLOT(t)] = GEN(t) }
#if HANDLERS
		d_step { state[SLOT(t)] = 0; state_gen[SLOT(t)] = GEN(t) }
#endif
#ifndef BUG_LINE_BEFORE_PROGRESS
		body[SLOT(t)] = GEN(t);
		line[SLOT(t)] = GEN(t)
#endif
	}
	d_step { t = 0; pc++ }
	goto next;

crowded:
	atomic {
		if
		:: !FULL || recovered -> waiting--; goto next
#if HANDLERS
		:: SOME_DUE -> waiting--; goto post
#endif
#if DEATH
		:: NOTICED -> waiting--; goto recover
#endif
		fi
	}

#if ABORTS
abort:
	atomic {
		t = lim;
		do
		:: t == 0 -> break
		:: t != 0 && dst[t - 1] == X -> break
		:: t != 0 && dst[t - 1] != X -> t--
		od;
		if
		:: t == 0 /* the client has made that copy itself */
		:: else ->
			t--;
			abort_ring = abort_ring | (1 << t);
			/* What was not synced before is nobody's any more. */
			k = 0;
			do
			:: k == SEGS -> break
			:: else ->
				if
				:: !DONE(t, k) -> want[CELL(X, k)] = ANY
				:: else
				fi;
				k++
			od;
			k = 0;
			t = 0
		fi;
		pc++
	}
	goto next;
#endif

sync:
	LINE {
		look_over();
		if
		:: u == NONE -> goto synced
		:: u != NONE && TAKEN(u, s) -> goto busy
		:: u != NONE && !TAKEN(u, s)
		fi
	}
#if OURS && !defined(BUG_CLAIM_BEFORE_INTENT)
	d_step { ours_gen[me] = GEN(u); ours[me] = 1 << s }
#endif
	atomic {
		if
		:: CLAIMABLE(u, s) -> take(u, s)
		:: else ->
#if OURS
			ours_gen[me] = 0;
			ours[me] = 0;
#endif
			goto sync
		fi
	}
#ifdef BUG_CLAIM_BEFORE_INTENT
	d_step { ours_gen[me] = GEN(u); ours[me] = 1 << s }
#endif
	copy_reads(src[f], dst[f], s);
	copy_writes(src[f], dst[f], s);
	finish(u, s);
#if OURS
	d_step { ours_gen[me] = 0; ours[me] = 0 }
#endif
	goto sync;

busy:
	atomic {
		if
		:: DONE(u, s) || !TAKEN(u, s) -> u = 0; f = 0; goto sync
#if DEATH
		:: NOTICED -> u = 0; f = 0; s = 0; goto recover
#endif
		fi
	}

synced:
	atomic { u = 0; f = 0 }
	if
	:: KIND == READ ->
		d_step {
			assert(!writing[CELL(X, s)]);
			assert(want[CELL(X, s)] == ANY || mem[CELL(X, s)] == want[CELL(X, s)]);
			pc++;
			s = 0
		}
	:: KIND == WRITE ->
		d_step {
			assert(!writing[CELL(X, s)] && reading[CELL(X, s)] == 0);
			mem[CELL(X, s)] = 32 + me * LENGTH + pc;
			want[CELL(X, s)] = 32 + me * LENGTH + pc;
			pc++;
			s = 0
		}
#if DEATH
	:: KIND == SUBMIT ->
		copy_reads(X, Y, s);
		copy_writes(X, Y, s);
		d_step { want[CELL(Y, s)] = want[CELL(X, s)]; s++ }
		if
		:: s < SEGS -> goto sync
		:: else -> d_step { s = 0; pc++ }
		fi
	:: KIND == FINISH ->
		s++;
		if
		:: s < SEGS -> goto sync
		:: else -> s = 0; goto leftover
		fi
#endif
	fi;
	goto next;

#if HANDLERS
post:
	atomic {
		if
		:: SOME_DUE
		:: else -> goto next
		fi;
		k = 0;
		do
		:: state[k] == DUE -> break
		:: else -> k++
		od;
		t = state_gen[k] - 1;
		k = 0
	}
	/* Fields first: the line may be another task's as soon as the handler is taken. */
#ifndef BUG_HANDLER_READ_AFTER_TAKEN
	f = body[SLOT(t)] - 1;
#endif
	atomic {
		if
#ifdef BUG_HANDLER_TAKEN_UNCHECKED
		:: state[SLOT(t)] = RUN
#else
		:: state_gen[SLOT(t)] == GEN(t) && state[SLOT(t)] == DUE -> state[SLOT(t)] = RUN
		:: else -> t = 0; f = 0; goto next
#endif
		fi
	}
#ifdef BUG_HANDLER_READ_AFTER_TAKEN
	f = body[SLOT(t)] - 1;
#endif
	run_handler(f);
	d_step { t = 0; f = 0 }
	goto next;
#endif

#if DEATH
/* What the dead had claimed and not done is taken back, once. */
recover:
	atomic {
		if
		:: recovered -> goto next
		:: !recovered && !recovering -> recovering = 1
		fi
	}
	k = 0;
	do
	:: k == SLOTS -> break
	:: else ->
#if OURS
		/* Claimed by the other thread? Claim, ours, done are read in this order. */
		atomic {
			was_gen = claim_gen[k];
			was_claimed = claim[k]
		}
#ifndef BUG_RECOVERY_TAKES_FROM_OTHERS
		d_step {
			if
			:: ours_gen[1 - me] == was_gen -> was_ours = ours[1 - me]
			:: else
			fi
		}
#endif
		was_claimed = was_claimed & ~done[k];
		if
		:: (was_claimed & was_ours) != 0 ->
			/* About to copy it, or to find that it is the dead one's. */
			ours[1 - me] == 0
		:: else ->
			atomic {
				if
				:: claim_gen[k] == was_gen &&
					(claim[k] & was_claimed) == was_claimed ->
					claim[k] = claim[k] & ~was_claimed;
					k++
				:: else
				fi
			}
		fi;
		atomic { was_claimed = 0; was_ours = 0; was_gen = 0 }
#else
		d_step {
#ifdef BUG_RECOVERY_FORGETS_PINS
			if
			:: claim[k] != done[k] -> claim[k] = done[k]; k = SLOTS - 1
			:: else
			fi;
#else
#ifdef BUG_RECOVERY_REDOES_DONE
			done[k] = 0;
#endif
			claim[k] = claim[k] & done[k];
#endif
			k++
		}
#endif
	od;
	atomic { k = 0; recovered = 1; recovering = 0 }
	goto next;

/* All that this thread knew of is done. Handlers that the service did not come to are run from
 * here, if need be for the other thread, whose task may have been written to its line just now. */
leftover:
#if HANDLERS
	k = 0;
	do
	:: k == lim -> break
	:: k != lim && !BIT(handlers, k) -> k++
	:: k != lim && BIT(handlers, k) ->
		atomic {
			if
#ifdef BUG_RECOVERY_RUNS_ALL_HANDLERS
			:: t = k
#else
			:: FINISHED(k) && state_gen[SLOT(k)] == GEN(k) && state[SLOT(k)] != RUN ->
				state[SLOT(k)] = RUN;
				t = k
			:: else -> t = NONE
#endif
			fi;
			f = k
		}
		if
		:: t != NONE -> run_handler(t)
		:: else
		fi;
		d_step { k = f + 1; t = 0; f = 0 }
	od;
	k = 0;
#endif
#endif

finished:
	atomic { left++; pc = 0; lim = 0 }
	left == THREADS;
	d_step {
		k = 0;
		do
		:: k == CELLS -> break
		:: else ->
			assert(want[k] == ANY || mem[k] == want[k]);
			assert(reading[k] == 0 && !writing[k]);
			k++
		od;
#if HANDLERS
		k = 0;
		do
		:: k == head -> break
		:: else -> assert(ran[k] == BIT(handlers, k)); k++
		od;
#endif
		k = 0
	}
}

inline start() {
	k = 0;
	do
	:: k == CELLS -> break
	:: else -> mem[k] = k + 1; want[k] = k + 1; k++
	od;
	k = 0;
	do
	:: k == WORKERS -> break
	:: else -> run worker(); k++
	od;
	k = 0;
	do
	:: k == THREADS -> break
	:: else -> run client(k); k++
	od;
#if DEATH
	run death();
#endif
	k = 0;
	length = 0
}
