#include "textflag.h"

// func productsFMA(a *float32, aStride int, b *float32, bStride, k int, out *[8]float32)
TEXT ·productsFMA(SB), NOSPLIT, $0-48
	MOVQ a+0(FP), SI
	MOVQ aStride+8(FP), AX
	LEAQ (SI)(AX*4), DI
	MOVQ b+16(FP), R8
	MOVQ bStride+24(FP), BX
	LEAQ (R8)(BX*4), R9
	LEAQ (R9)(BX*4), R10
	LEAQ (R10)(BX*4), R11
	MOVQ k+32(FP), CX
	MOVQ out+40(FP), DX

	// Y0-Y3: products of the first row, Y4-Y7: of the second.
	VXORPS Y0, Y0, Y0
	VXORPS Y1, Y1, Y1
	VXORPS Y2, Y2, Y2
	VXORPS Y3, Y3, Y3
	VXORPS Y4, Y4, Y4
	VXORPS Y5, Y5, Y5
	VXORPS Y6, Y6, Y6
	VXORPS Y7, Y7, Y7
	XORQ   AX, AX

loop:
	VMOVUPS     (SI)(AX*4), Y8
	VMOVUPS     (DI)(AX*4), Y9
	VMOVUPS     (R8)(AX*4), Y10
	VMOVUPS     (R9)(AX*4), Y11
	VMOVUPS     (R10)(AX*4), Y12
	VMOVUPS     (R11)(AX*4), Y13
	VFMADD231PS Y8, Y10, Y0
	VFMADD231PS Y8, Y11, Y1
	VFMADD231PS Y8, Y12, Y2
	VFMADD231PS Y8, Y13, Y3
	VFMADD231PS Y9, Y10, Y4
	VFMADD231PS Y9, Y11, Y5
	VFMADD231PS Y9, Y12, Y6
	VFMADD231PS Y9, Y13, Y7
	ADDQ        $8, AX
	CMPQ        AX, CX
	JLT         loop

	// Add up each of the eight sums; four end up side by side.
	VHADDPS      Y1, Y0, Y0
	VHADDPS      Y3, Y2, Y2
	VHADDPS      Y2, Y0, Y0
	VEXTRACTF128 $1, Y0, X1
	VADDPS       X1, X0, X0
	VMOVUPS      X0, (DX)
	VHADDPS      Y5, Y4, Y4
	VHADDPS      Y7, Y6, Y6
	VHADDPS      Y6, Y4, Y4
	VEXTRACTF128 $1, Y4, X5
	VADDPS       X5, X4, X4
	VMOVUPS      X4, 16(DX)
	VZEROUPPER
	RET
