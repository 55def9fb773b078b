/* Handlers, which free the source: once, by either of two threads, after all readers. DEATH: 0 or
 * 1. Three tasks for two slots, so that a handler must be had before its slot is used again. */
#define TASKS 3
#define SLOTS 2
#ifndef SEGS
#define SEGS 1
#endif
#define BUFFERS 5
#ifndef WORKERS
#define WORKERS 1
#endif
#define THREADS 2
#define LENGTH 7
#define FINE 0
#define ABORTS 0
#define HANDLERS 1
#ifndef DEATH
#define DEATH 0
#endif
#include "copy.pml"
#include "service.pml"
#include "client.pml"

#define A 0
#define B 1
#define C 2
#define D 3
#define E 4
#define OVER OP(END, 0, 0, 0); OP(FINISH, 0, 0, 0)
#define SECOND OVER; length = LENGTH

init {
	byte k;
	atomic {
#if DEATH
		mortal = 1;
#endif
		if
		:: hasty = 0
		:: hasty = 1
		fi;
		if
		:: nap = 0
		:: nap = 1
		fi;
		if
		:: /* a slot is wanted while handlers wait */
			OP(SUBMIT, A, B, HANDLER); OP(SUBMIT, C, D, HANDLER);
			OP(SUBMIT, B, E, HANDLER); OP(READ, E, 0, 0); SECOND
		:: /* an older task that is lazy reads there too */
			OP(SUBMIT, A, B, LAZY); OP(SUBMIT, A, C, HANDLER); OP(TELL, 0, 0, 0);
			OP(READ, C, 0, 0); SECOND; OP(HEAR, 0, 0, 0); OP(READ, B, 0, 0)
		:: /* and is read past by a younger one */
			OP(SUBMIT, A, B, LAZY + HANDLER); OP(SUBMIT, B, C, HANDLER);
			OP(TELL, 0, 0, 0); OP(READ, C, 0, 0); SECOND; OP(HEAR, 0, 0, 0);
			OP(READ, C, 0, 0)
		:: /* two threads submit */
			OP(SUBMIT, A, B, HANDLER); OP(WRITE, B, 0, 0); OP(SUBMIT, B, E, 0);
			SECOND; OP(SUBMIT, C, D, LAZY + HANDLER)
		fi;
		OVER;
		start()
	}
}
